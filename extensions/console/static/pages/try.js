/** Try it: send a model a file or JSON and see the answer, or talk with a language model. */

import { can, follow, request, send } from '../api.js';
import {
  apiPath,
  Copy,
  duration,
  Empty,
  Fault,
  html,
  jobPath,
  Loaded,
  NONE,
  Panel,
  Select,
  State,
  Text,
  to,
  usePoll,
  useEffect,
  useRef,
  useState,
} from '../parts.js';
import { joined, Preview } from './job.js';

/** Whether a model takes messages, as language models do. @param {any} model */
const talks = (model) => model.handler === 'language_model' || Array.isArray(model.inputs?.example?.messages);

/** A job that this page has submitted, followed to its end. @param {string | null} id */
function useJob(id) {
  const [state, setState] = useState(/** @type {any} */ ({ pieces: [] }));
  useEffect(() => {
    if (!id || !can('read')) return;
    setState({ pieces: [] });
    const control = new AbortController();
    follow(id, setState, control.signal);
    return () => control.abort();
  }, [id]);
  return state;
}

/** @param {{ id: string }} of */
function Answer({ id }) {
  const { pieces, job } = useJob(id);
  const side = html`<a href=${jobPath(id)}>Job</a>${job?.timings && html`<span>${duration(job.timings.total / 1000)}</span>`}`;
  if (!can('read'))
    return html`<${Panel} title="Submitted"><p>The job is <code>${id}</code>. This key may not read results.</p></${Panel}>`;
  return html`<${Panel} title=${job ? html`<${State} of=${job.status} />` : html`<${State} of="running" />`} side=${side}>
    ${job?.error && html`<div class="body"><${Text} block text=${job.error.message} max=${2000} /></div>`}
    ${pieces.length > 0 && job?.status !== 'succeeded' && html`<div class="body"><${Text} block text=${joined(pieces)} max=${20_000} /></div>`}
    ${job?.status === 'succeeded' && html`<${Preview} path=${apiPath('jobs', id, 'result')} name="result" size=${job.result_size} />`}
    ${!job && !pieces.length && html`<p class="muted">Waiting for the answer…</p>`}
  </${Panel}>`;
}

/** @param {{ name: string, of: any, values: Record<string, string>, set: (values: Record<string, string>) => void }} of */
function Parameter({ name, of, values, set }) {
  const change = (/** @type {any} */ event) =>
    set({ ...values, [name]: event.target.type === 'checkbox' ? `${event.target.checked}` : event.target.value });
  const id = `parameter-${name}`;
  return html`<div><label for=${id} title=${of.description}>${name}${of.required && ' (required)'}</label>
    ${
      of.enum
        ? html`<select id=${id} onChange=${change}><option value="">${of.default ?? 'not set'}</option>${of.enum.map((/** @type {any} */ one) => html`<option>${one}</option>`)}</select>`
        : html`<input id=${id} type=${of.type === 'boolean' ? 'checkbox' : of.type === 'string' ? 'text' : 'number'} step="any" placeholder=${of.default ?? ''} onInput=${change} />`
    }</div>`; // prettier-ignore
}

/** @param {{ name: string, model: any }} of */
function Form({ name, model }) {
  const example = model.inputs?.example;
  const takesJson = !model.inputs || model.inputs.schema !== null;
  const [text, setText] = useState(JSON.stringify(example?.base64 ? {} : (example ?? {}), null, 2));
  const [file, setFile] = useState(/** @type {File | null} */ (null));
  const [over, setOver] = useState(false);
  const [values, setValues] = useState(/** @type {Record<string, string>} */ ({}));
  const [id, setId] = useState(/** @type {string | null} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const picked = useRef(/** @type {HTMLInputElement | null} */ (null));
  async function submit(/** @type {Event} */ event) {
    event.preventDefault();
    setError(null);
    setBusy(true);
    try {
      const query = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ''));
      const json = 'application/json';
      if (!file) JSON.parse(text);
      const headers = { 'content-type': file ? file.type || 'application/octet-stream' : json };
      const answer = await request('POST', apiPath('models', name, 'jobs'), {
        query,
        headers,
        body: file ?? text,
        patient: true,
      });
      setId((await answer.json()).id);
    } catch (/** @type {any} */ failed) {
      setError(
        failed instanceof SyntaxError
          ? { message: `This is no JSON: ${failed.message}.`, remedy: 'Correct it, or drop a file.' }
          : failed,
      );
    }
    setBusy(false);
  }
  const drop = (/** @type {DragEvent} */ event) => {
    event.preventDefault();
    setOver(false);
    setFile(event.dataTransfer?.files[0] ?? null);
  };
  const hold = (/** @type {Event} */ event) => {
    event.preventDefault();
    setOver(true);
  };
  const kinds = model.inputs?.content_types ?? [];
  return html`<div class="columns"><${Panel} title="Input" side=${kinds.length ? html`<${Text} text=${kinds.join(', ')} />` : ''}>
    <form onSubmit=${submit}>
      <div class=${`drop ${over ? 'over' : ''}`} onDragOver=${hold} onDragLeave=${() => setOver(false)} onDrop=${drop}>
        ${
          file
            ? html`<span><${Text} text=${file.name} max=${80} /> <span class="muted">${file.type || 'of an unknown type'}</span></span><button type="button" class="quiet" onClick=${() => setFile(null)}>Take away</button>`
            : html`<span class="muted">Drop a file here, or</span><button type="button" onClick=${() => picked.current?.click()}>Choose a file</button>`
        }
        <input ref=${picked} type="file" hidden aria-label="File" onChange=${(/** @type {any} */ event) => setFile(event.target.files[0] ?? null)} />
      </div>
      ${!file && takesJson && html`<textarea aria-label="JSON" rows="9" spellcheck="false" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)}></textarea>`}
      ${Object.entries(model.parameters).length > 0 && html`<div class="filters">${Object.entries(model.parameters).map(([one, of]) => html`<${Parameter} name=${one} of=${of} values=${values} set=${setValues} />`)}</div>`}
      <${Fault} error=${error} />
      <div><button class="primary" type="submit" disabled=${busy || (!file && !takesJson)}>Send</button></div>
    </form></${Panel}>
    ${id ? html`<${Answer} key=${id} id=${id} />` : html`<${Panel} title="Answer"><${Empty} title="Nothing was sent yet">${takesJson ? 'Send the input as it is, or change it first.' : 'Drop a file, then send it.'}</${Empty}></${Panel}>`}
  </div>`; // prettier-ignore
}

/** @param {{ id: string, done: (text: string) => void }} of */
function Reply({ id, done }) {
  const { pieces, job } = useJob(id);
  const whole = typeof job?.result?.text === 'string' ? job.result.text : joined(pieces);
  useEffect(() => void (job && done(whole)), [job]);
  return html`<li class="reply"><b>Model <a class="muted" href=${jobPath(id)}>job</a></b>
    ${whole ? html`<p class="user" dir="auto"><${Text} text=${whole} max=${20_000} /></p>` : !job && html`<p class="muted">…</p>`}
    ${job?.error && html`<p class="bad-text"><${Text} text=${job.error.message} max=${500} /></p>`}</li>`;
}

/** @param {{ name: string }} of */
function Chat({ name }) {
  const [turns, setTurns] = useState(/** @type {{ role: string, content: string, id?: string }[]} */ ([]));
  const [text, setText] = useState('');
  const [most, setMost] = useState('200');
  const [error, setError] = useState(/** @type {any} */ (null));
  const waits = turns.at(-1)?.role === 'assistant' && !turns.at(-1)?.content;
  async function say(/** @type {Event} */ event) {
    event.preventDefault();
    if (!text.trim() || waits) return;
    const asked = [...turns, { role: 'user', content: text }];
    const messages = asked.map(({ role, content }) => ({ role, content }));
    setError(null);
    try {
      const job = await send('POST', apiPath('jobs'), {
        model: name,
        input: { messages, max_tokens: Number(most) || 200 },
      });
      setTurns([...asked, { role: 'assistant', content: '', id: job.id }]);
      setText('');
    } catch (failed) {
      setError(failed);
    }
  }
  const done = (/** @type {number} */ i) => (/** @type {string} */ content) =>
    setTurns((all) => all.map((turn, n) => (n === i ? { ...turn, content: content || NONE } : turn)));
  const enter = (/** @type {KeyboardEvent} */ event) =>
    event.key === 'Enter' && !event.shiftKey && !event.isComposing && say(event);
  return html`<${Panel} title="Chat" side=${html`<label>At most <input type="number" min="1" max="100000" size="6" aria-label="Tokens" value=${most} onInput=${(/** @type {any} */ event) => setMost(event.target.value)} /> tokens</label>
      ${turns.length > 0 && html`<${Copy} text=${JSON.stringify(turns, null, 2)} /><button class="quiet" onClick=${() => setTurns([])}>Begin again</button>`}`}>
    ${
      turns.length
        ? html`<ol class="chat">${turns.map((turn, i) => (turn.id ? html`<${Reply} key=${turn.id} id=${turn.id} done=${done(i)} />` : html`<li><b>You</b><p class="user" dir="auto"><${Text} text=${turn.content} max=${20_000} /></p></li>`))}</ol>`
        : html`<${Empty} title="Ask something">The whole conversation is sent with each question. Nothing of it is kept in this browser.</${Empty}>`
    }
    <form onSubmit=${say}>
      <textarea aria-label="Message" rows="3" placeholder="Message; Enter sends it" value=${text} onKeyDown=${enter} onInput=${(/** @type {any} */ event) => setText(event.target.value)}></textarea>
      <${Fault} error=${error} />
      <div><button class="primary" type="submit" disabled=${waits}>Send</button></div>
    </form></${Panel}>`; // prettier-ignore
}

/** @param {{ name: string }} of */
function Trial({ name }) {
  const poll = usePoll(apiPath('models', name), { every: 10_000 });
  return html`<${Loaded} of=${poll}>${() => (talks(poll.data) ? html`<${Chat} name=${name} />` : html`<${Form} name=${name} model=${poll.data} />`)}</${Loaded}>`;
}

/** @param {{ query: URLSearchParams }} of */
export default function Try({ query }) {
  const reads = can('read');
  const models = usePoll(reads ? '/api/v1/models' : null, { every: 30_000 });
  const names = (models.data?.models ?? []).map((/** @type {any} */ m) => m.name);
  const name = query.get('model') ?? names[0];
  const go = (/** @type {string} */ model) => {
    location.hash = to('/try', { model });
  };
  if (!reads)
    return html`<div class="head"><h1>Try it</h1>
      <input aria-label="Model" placeholder="name of a model" value=${name ?? ''} onChange=${(/** @type {any} */ event) => go(event.target.value.trim())} /></div>
    ${name ? html`<${Form} key=${name} name=${name} model=${{ parameters: {} }} />` : html`<${Panel}><${Empty} title="Name a model">This key may not list models.</${Empty}></${Panel}>`}`;
  return html`<div class="head"><h1>Try it</h1>
      <${Select} label="Model" value=${name} options=${names.map((/** @type {string} */ one) => [one, one])} onChange=${go} /></div>
    <${Fault} error=${models.error} />
    ${name && html`<${Trial} key=${name} name=${name} />`}`;
}
