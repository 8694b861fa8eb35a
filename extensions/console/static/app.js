/** The frame around the pages: menu, addresses, keyboard, the login, and what is told to all. */

import { can, enter, key, lost, session } from './api.js';
import { PAGES, pageOf } from './pages.js';
import {
  Fault,
  html,
  Panel,
  Time,
  Toasts,
  to,
  useEffect,
  useErrorBoundary,
  useRef,
  useState,
  useStore,
} from './parts.js';
import { render } from './vendor/htm-preact.js';

const THEMES = ['auto', 'light', 'dark'];
const theme = () => localStorage.getItem('headrace.theme') ?? 'auto';
const applyTheme = () => document.documentElement.setAttribute('data-theme', theme());

/** The place that the address names: `#/jobs?status=failed`. */
function place() {
  const [path, query = ''] = location.hash.replace(/^#/, '').split(/\?(.*)/s);
  return { path: path || '/', query: new URLSearchParams(query) };
}

function Login() {
  const { needed } = useStore(session);
  const [text, setText] = useState('');
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    enter(text);
  };
  return html`<main class="login"><${Panel} title="Headrace">
    <form onSubmit=${submit}>
      <label for="key">API key</label>
      <input id="key" type="password" autocomplete="off" spellcheck="false" autofocus value=${text}
        onInput=${(/** @type {any} */ event) => setText(event.target.value)} placeholder="hr_…" />
      ${needed && html`<p class="fault" role="alert">${needed}</p>`}
      <button class="primary" type="submit">Continue</button>
      <p class="muted">The key stays in this tab and is gone with it. An operator makes one:
        <code>headrace keys create --scope manage</code></p>
    </form></${Panel}></main>`;
}

function Menu({ path = '/' }) {
  const [shade, setShade] = useState(theme());
  const { name, id } = useStore(session);
  const groups = Map.groupBy(
    PAGES.filter((page) => page.group && can(page.scope)),
    (page) => page.group ?? '',
  );
  // On a phone the menu is wider than the screen.
  useEffect(() => {
    document.querySelector('.menu [aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }, [path]);
  const current = (/** @type {string} */ of) => (of === '/' ? path === '/' : path === of || path.startsWith(`${of}/`));
  const turn = () => {
    localStorage.setItem('headrace.theme', THEMES[(THEMES.indexOf(theme()) + 1) % 3]);
    applyTheme();
    setShade(theme());
  };
  return html`<nav class="menu" aria-label="Pages">
    <a class="name" href="#/">Headrace</a>
    ${[...groups].map(
      ([title, pages]) => html`<div role="group" aria-label=${title}><b>${title}</b>
      ${pages.map((page) => html`<a href=${to(page.path)} aria-current=${current(page.path) ? 'page' : null}>${page.title}<kbd>g ${page.go}</kbd></a>`)}</div>`,
    )}
    <div class="end">
      ${key() && html`<span class="muted" title="The API key of this tab">${name || id}</span><button class="quiet" onClick=${() => enter('')}>Forget key</button>`}
      <button class="quiet" onClick=${turn} title="Light, dark, or as the system has it">Theme: ${shade}</button>
      <button class="quiet" onClick=${help}>Keyboard: ?</button>
    </div>
  </nav>`;
}

const help = () => /** @type {HTMLDialogElement} */ (document.getElementById('help')).showModal();

const Help = () => html`<dialog id="help" aria-label="Keyboard">
  <h2>Keyboard</h2>
  <dl class="facts">
    <div><dt><kbd>/</kbd></dt><dd>Search</dd></div>
    ${PAGES.filter((page) => page.go && can(page.scope)).map((page) => html`<div><dt><kbd>g ${page.go}</kbd></dt><dd>${page.title}</dd></div>`)}
    <div><dt><kbd>?</kbd></dt><dd>This list</dd></div>
    <div><dt><kbd>Esc</kbd></dt><dd>Close, or leave a field</dd></div>
  </dl>
  <form method="dialog"><button>Close</button></form></dialog>`;

/** Handles keys outside fields: `/`, `?`, and `g` with a letter. */
function useKeyboard() {
  useEffect(() => {
    let after = '';
    const onKey = (/** @type {KeyboardEvent} */ event) => {
      const target = /** @type {HTMLElement} */ (event.target);
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
      if (target.matches('input, textarea, select')) {
        if (event.key === 'Escape') target.blur();
        return;
      }
      const page = after === 'g' && PAGES.find((one) => one.go === event.key && can(one.scope));
      after = event.key;
      if (page) location.hash = to(page.path);
      else if (event.key === '?') help();
      else if (event.key === '/') {
        event.preventDefault();
        const field = /** @type {HTMLElement | null} */ (document.querySelector('[data-search]'));
        if (field) field.focus();
        else location.hash = to('/jobs', { search: 1 });
      }
    };
    document.addEventListener('keydown', onKey);
    return () => document.removeEventListener('keydown', onKey);
  }, []);
}

/** @param {{ path: string, query: URLSearchParams }} of */
function Page({ path, query }) {
  const found = pageOf(path);
  const [error, again] = useErrorBoundary();
  const [view, setView] = useState(/** @type {{ of?: any, draw?: any }} */ ({}));
  const title = found?.page.title ?? 'Not here';
  useEffect(() => {
    document.title = `${found?.params.model ?? found?.params.job ?? title} · Headrace`;
    found?.page.load().then(
      (module) => setView({ of: found.page, draw: module.default }),
      (failed) => setView({ of: found.page, draw: () => html`<${Fault} error=${failed} />` }),
    );
  }, [path]);
  if (error) return html`<${Fault} error=${error} /><button onClick=${again}>Draw the page again</button>`;
  if (!found)
    return html`<h1>Nothing is here</h1><p>The console has no page <code>${path.slice(0, 100)}</code>. <a href="#/">Go to the overview.</a></p>`;
  if (!can(found.page.scope))
    return html`<h1>${title}</h1><p>This page needs a key with the scope <b>${found.page.scope}</b>.</p>`;
  if (view.of !== found.page) return html`<p class="loading" role="status">Loading…</p>`;
  return html`<${view.draw} key=${path} path=${path} params=${found.params} query=${query} />`;
}

function App() {
  const [here, setHere] = useState(place());
  const { scopes, needed, trouble } = useStore(session);
  const gone = useStore(lost);
  const main = useRef(/** @type {HTMLElement | null} */ (null));
  useKeyboard();
  useEffect(() => {
    const moved = () => setHere(place());
    addEventListener('hashchange', moved);
    moved();
    return () => removeEventListener('hashchange', moved);
  }, []);
  useEffect(() => main.current?.focus({ preventScroll: false }), [here.path]);
  if (needed !== undefined) return html`<${Login} />`;
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => {
      event.preventDefault();
      main.current?.focus();
    }}>To the content</a>
    <${Menu} path=${here.path} />
    <main ref=${main} tabindex="-1" class=${gone ? 'stale' : ''}>
      ${gone && html`<p class="lost" role="alert">${gone.why} This is the state of <${Time} at=${gone.since} />; it is tried again every two seconds.</p>`}
      ${scopes ? html`<${Page} path=${here.path} query=${here.query} />` : html`<${Fault} error=${trouble} /><p class="loading" role="status">${trouble ? 'Trying again every two seconds…' : 'Loading…'}</p>`}
    </main>
    <${Help} /><${Toasts} />`;
}

applyTheme();
render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById('app')));
enter();
