/** Keys: who may use the API. A new key is shown once; a revoked one is gone at once. */

import { send, session } from '../api.js';
import {
  Action,
  apiPath,
  Copy,
  count,
  Empty,
  html,
  Loaded,
  NONE,
  Panel,
  Select,
  State,
  Table,
  Text,
  Time,
  to,
  usePoll,
  useState,
  useStore,
  visible,
} from '../parts.js';

const SCOPES = /** @type {[string, string][]} */ ([
  ['submit', 'submit and cancel jobs'],
  ['read', 'read jobs and models'],
  ['manage', 'change everything, see the jobs of all keys, make keys'],
]);
const LIVES = [
  ['0', 'for ever'],
  ['86400', '1 day'],
  ['2592000', '30 days'],
  ['31536000', '1 year'],
];
const FIRST = { name: '', scopes: ['submit', 'read'], rate: '', max_in_flight: '', expires_in_s: '0' };

/** @typedef {any} Key */

/** @param {{ made: (key: Key) => void }} of */
function NewKey({ made }) {
  const [form, setForm] = useState(FIRST);
  const set = (/** @type {string} */ name) => (/** @type {any} */ event) =>
    setForm((old) => ({ ...old, [name]: event.target.value }));
  const turn = (/** @type {string} */ scope) =>
    setForm((old) => ({
      ...old,
      scopes: old.scopes.includes(scope) ? old.scopes.filter((one) => one !== scope) : [...old.scopes, scope],
    }));
  const create = async () => {
    const limits = { rate: Number(form.rate), max_in_flight: Number(form.max_in_flight) };
    const wanted = { ...form, ...limits, expires_in_s: Number(form.expires_in_s) };
    made(await send('POST', apiPath('keys'), wanted));
    setForm(FIRST);
  };
  const fields = html`<h2>New key</h2><div class="fields">
    <label>Name <input value=${form.name} maxlength="64" placeholder="what uses it" onInput=${set('name')} /></label>
    <fieldset><legend>It may</legend>${SCOPES.map(([scope, words]) => html`<label class="check"><input type="checkbox" checked=${form.scopes.includes(scope)} onChange=${() => turn(scope)} /> <b>${scope}</b> ${words}</label>`)}</fieldset>
    <label>Requests and jobs a second <input type="number" min="0" placeholder="no limit" value=${form.rate} onInput=${set('rate')} /></label>
    <label>Jobs in flight <input type="number" min="0" placeholder="no limit" value=${form.max_in_flight} onInput=${set('max_in_flight')} /></label>
    <label>It lives <${Select} label="It lives" value=${form.expires_in_s} options=${LIVES} onChange=${(/** @type {string} */ expires_in_s) => setForm((old) => ({ ...old, expires_in_s }))} /></label></div>`;
  return html`<${Action} label="New key" kind="primary" keep="Cancel" run=${create} confirm=${fields} />`;
}

/** @param {{ of: Key, close: () => void }} of */
const Made = ({ of: key, close }) => html`
  <div class="note" role="status"><p><b>The key ${visible(key.name)}</b> is shown this once. Copy it now.</p>
    <pre class="secret" tabindex="0">${key.key}</pre><p><${Copy} text=${key.key} label="Copy the key" /> <button class="quiet" onClick=${close}>I have it</button></p></div>`;

export default function Keys() {
  const poll = usePoll('/api/v1/keys');
  const { id: own } = useStore(session);
  const [made, setMade] = useState(/** @type {Key | null} */ (null));
  const revoke = async (/** @type {Key} */ key) => {
    await send('DELETE', apiPath('keys', key.id));
    poll.refresh();
    return `The key ${key.name} is revoked.`;
  };
  /** @type {import('../parts.js').Column[]} */
  const columns = [
    {
      name: 'Name',
      by: (k) => k.name,
      cell: (k) =>
        html`<b><${Text} text=${k.name} max=${64} /></b>${k.id === own && html` <span class="muted">this tab</span>`}${k.internal && html` <span class="muted">a component of the deployment</span>`}`,
    },
    {
      name: 'Id',
      wide: true,
      cell: (k) => html`<a class="mono" href=${to('/audit', { by: k.id })} title="What it has changed">${k.id}</a>`,
    },
    { name: 'Scopes', cell: (k) => k.scopes.join(', ') },
    {
      name: 'Rate',
      num: true,
      wide: true,
      by: (k) => k.rate,
      cell: (k) => (k.rate === null ? NONE : `${count(k.rate)} / s`),
    },
    {
      name: 'In flight',
      num: true,
      wide: true,
      by: (k) => k.in_flight,
      cell: (k) =>
        html`<a class="strong" href=${to('/jobs', { key: k.id })}>${count(k.in_flight)}</a>${k.max_in_flight === null ? '' : ` of ${count(k.max_in_flight)}`}`,
    },
    {
      name: 'Last used',
      num: true,
      wide: true,
      by: (k) => k.last_used_at ?? '',
      cell: (k) => (k.last_used_at ? html`<${Time} at=${k.last_used_at} />` : html`<span class="muted">never</span>`),
    },
    {
      name: 'Created',
      num: true,
      wide: true,
      by: (k) => k.created_at,
      cell: (k) => html`<${Time} at=${k.created_at} />`,
    },
    {
      name: 'Expires',
      num: true,
      wide: true,
      cell: (k) =>
        k.expired
          ? html`<${State} of="expired" />`
          : k.expires_at
            ? html`<${Time} at=${k.expires_at} />`
            : html`<span class="muted">never</span>`,
    },
    {
      name: '',
      num: true,
      cell: (k) =>
        !k.internal &&
        own &&
        html`<${Action} label="Revoke" kind="danger" run=${() => revoke(k)} confirm=${html`<h2>Revoke a key?</h2><p><b><${Text} text=${k.name} max=${64} /></b> <span class="mono">${k.id}</span> is invalid at once.${k.id === own ? ' It is the key of this tab: you will need another one.' : ''}</p><p>Its ${count(k.in_flight)} jobs in flight go on.</p>`} />`,
    },
  ];
  return html`<div class="head"><h1>Keys</h1><div class="actions">${
    own &&
    html`<${NewKey} made=${(/** @type {Key} */ key) => {
      setMade(key);
      poll.refresh();
    }} />`
  }</div></div>
    ${!own && html`<p class="note">This server asks nobody for a key, so keys are made on it alone: <code>headrace keys create NAME</code>. Set <code>HEADRACE_AUTH=on</code> to require them.</p>`}
    ${made && html`<${Made} of=${made} close=${() => setMade(null)} />`}
    <${Loaded} of=${poll}>${() => html`<${Panel}><${Table} label="API keys" rows=${poll.data.keys} id=${(/** @type {Key} */ k) => k.id} columns=${columns}
      empty=${html`<${Empty} title="There is no key">Make one on the server: <code>headrace keys create NAME</code></${Empty}>`} /></${Panel}>`}</${Loaded}>`;
}
