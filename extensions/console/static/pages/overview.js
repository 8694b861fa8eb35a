/** Overview: what is wrong, in words, and each model in numbers. */

import { Bar, count, duration, Empty, html, Loaded, modelPath, Panel, percent, Spark, State, Table, to, usePoll } from '../parts.js';

/** @typedef {any} Model */

/** @param {{ of: any[] }} of */
function Findings({ of }) {
  if (!of.length) return html`<p class="calm"><${State} of="ready" tone="ok" /></p>`;
  return html`<ul class="findings" aria-label="What is wrong">${of.map(
    (one) => html`<li class=${one.severity === 'fail' ? 'bad' : 'warn'}>
      <b>${one.text}</b><span>${one.hint}</span>
      ${one.model && html`<a href=${modelPath(one.model)}>${one.model}</a>`}</li>`,
  )}</ul>`;
}

/** @param {(model: string, name: string) => (number | null)[]} hour */
const columns = (hour) => [
  { name: 'Model', by: (/** @type {Model} */ m) => m.name, cell: (/** @type {Model} */ m) => html`<a class="strong" href=${modelPath(m.name)}>${m.name}</a>` },
  { name: 'State', by: (/** @type {Model} */ m) => m.state, cell: (/** @type {Model} */ m) => html`<${State} of=${m.paused ? 'paused' : m.state} />` },
];

export default function Overview() {
  const overview = usePoll('/api/v1/overview');
  const series = usePoll('/api/v1/series', { every: 20_000 });
  const hour = (/** @type {string} */ model, /** @type {string} */ name) => series.data?.models[model]?.[name] ?? [];
  return html`<div class="head"><h1>Overview</h1></div>
    <${Loaded} of=${overview}>${() => html`
      <${Findings} of=${overview.data.findings} />
      <${Panel} title="Models">
        <${Table} label="Models" rows=${overview.data.models} id=${(/** @type {Model} */ m) => m.name} columns=${columns(hour)} />
      </${Panel}>`}</${Loaded}>`;
}
