/** The pages: their addresses, their places in the menu, and the files that have them. */

/**
 * A page. `:name` in its path is a parameter. Its module's default export is a component that gets
 * `{ path, params, query }`. `g` and the letter `go` open it; a page without `group` is not in the menu.
 * A key without the scope does not see it.
 * @typedef {{ path: string, params: Record<string, string>, query: URLSearchParams }} Place
 * @typedef {{ path: string, title: string, scope: string, group?: string, go?: string,
 *   load: () => Promise<{ default: (place: Place) => any }> }} Page
 */

/** @type {Page[]} */
export const PAGES = [
  { path: '/', title: 'Overview', scope: 'read', group: 'Work', go: 'o', load: () => import('./pages/overview.js') },
  {
    path: '/models',
    title: 'Models',
    scope: 'read',
    group: 'Work',
    go: 'm',
    load: () => import('./pages/overview.js'),
  },
  { path: '/models/:model', title: 'Model', scope: 'read', load: () => import('./pages/model.js') },
  { path: '/jobs', title: 'Jobs', scope: 'read', group: 'Work', go: 'j', load: () => import('./pages/jobs.js') },
  { path: '/jobs/:job', title: 'Job', scope: 'read', load: () => import('./pages/job.js') },
  {
    path: '/failures',
    title: 'Failures',
    scope: 'read',
    group: 'Work',
    go: 'f',
    load: () => import('./pages/failures.js'),
  },
  {
    path: '/runs',
    title: 'Runs and batches',
    scope: 'read',
    group: 'Work',
    go: 'r',
    load: () => import('./pages/runs.js'),
  },
  { path: '/try', title: 'Try it', scope: 'submit', group: 'Work', go: 't', load: () => import('./pages/try.js') },
  {
    path: '/workers',
    title: 'Workers',
    scope: 'manage',
    group: 'System',
    go: 'w',
    load: () => import('./pages/workers.js'),
  },
  {
    path: '/webhooks',
    title: 'Webhooks',
    scope: 'read',
    group: 'System',
    go: 'h',
    load: () => import('./pages/webhooks.js'),
  },
  { path: '/keys', title: 'Keys', scope: 'manage', group: 'System', go: 'k', load: () => import('./pages/keys.js') },
  { path: '/audit', title: 'Audit', scope: 'manage', group: 'System', go: 'a', load: () => import('./pages/audit.js') },
];

/** A part of an address; as it is, if a person has typed a `%` into it. @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/**
 * The page of an address, such as `/jobs/123`, with its parameters.
 * @param {string} path
 */
export function pageOf(path) {
  const parts = path.split('/');
  for (const page of PAGES) {
    const names = page.path.split('/');
    if (names.length !== parts.length) continue;
    /** @type {Record<string, string>} */
    const params = {};
    const fits = names.every((name, i) => {
      if (name.startsWith(':')) params[name.slice(1)] = decoded(parts[i]);
      return name.startsWith(':') ? parts[i] !== '' : name === parts[i];
    });
    if (fits) return { page, params };
  }
  return null;
}
