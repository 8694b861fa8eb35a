-- Sending the background task that notifies a webhook.

-- The list of tasks is short. What does not find room there waits for its turn, so that an API key with many tasks
-- delays only its own. Each of its tasks has the turn after the one before. A key without tasks has the present turn.
local TASKS_MAX = 64

-- Sends a task of an API key (nil: none). Keys of another type do no harm.
local function push_task(owner, task)
  local length = try('LLEN', keys.BACKGROUND_TASKS)
  if type(length) == 'number' and length < TASKS_MAX and call('EXISTS', keys.WAITING_TASKS) == 0 then
    try('LPUSH', keys.BACKGROUND_TASKS, task)
    return
  end
  local turns = try('HMGET', keys.TASK_TURNS, owner or '', ':now')
  local turn = turns.err and 0 or math.max(tonumber(turns[1] or '0'), tonumber(turns[2] or '0'))
  try('HSET', keys.TASK_TURNS, owner or '', whole(turn + 1))
  try('ZADD', keys.WAITING_TASKS, whole(turn), task)
end

-- Sends the task for a job's start, once: `task` is the record's, as the submit wrote it.
local function send_start_task(id, owner, task)
  call('HDEL', keys.job .. id, 'ws')
  push_task(owner, task)
end

-- Sends the task for a job's end, as the submit wrote it, if `events` has the letter of the state. How the job ended is
-- noted per API key (`owner`). The reason is that its record may be gone when the task runs, and another key may use
-- its id by then. Keys of another type do no harm.
local function send_webhook_task(id, events, state, owner)
  local task = string.find(events, state, 1, true) and call('HGET', keys.job .. id, 'wh')
  if not task then return end
  try('HSET', keys.deliveries .. id, 'e:' .. (owner or ''), state .. NOW)
  try('EXPIRE', keys.deliveries .. id, 7 * 86400)
  push_task(owner, task)
end

-- Orphaned ends: jobs that a script ends by itself. A worker must send their callbacks, or cancel their stages' jobs.
local ORPHANED_TTL_S = 31 * 86400

-- Parses a message; nil if it is no JSON object. Python's json also writes half of a surrogate pair, which cjson refuses.
-- It is replaced: no id that can be used has one.
local function decoded(raw)
  local ok, m = pcall(cjson.decode, raw)
  if not ok then ok, m = pcall(cjson.decode, (string.gsub(raw, '\\u[dD][89a-fA-F]%x%x', '\\ufffd'))) end
  return ok and type(m) == 'table' and m or nil
end

-- How the body of a stock client's message ends if it has no callbacks. It is
-- `{"callbacks": null, "errbacks": null, "chain": null, "chord": null}]` in base64. There is one form for each number
-- of bytes before it modulo three. A quote cannot be outside of a string, so that a JSON text which ends so has this
-- object, whole, as its last one.
local WITHOUT_CALLBACKS = {
  'IHsiY2FsbGJhY2tzIjogbnVsbCwgImVycmJhY2tzIjogbnVsbCwgImNoYWluIjogbnVsbCwgImNob3JkIjogbnVsbH1d',
  'LCB7ImNhbGxiYWNrcyI6IG51bGwsICJlcnJiYWNrcyI6IG51bGwsICJjaGFpbiI6IG51bGwsICJjaG9yZCI6IG51bGx9XQ==',
  'eyJjYWxsYmFja3MiOiBudWxsLCAiZXJyYmFja3MiOiBudWxsLCAiY2hhaW4iOiBudWxsLCAiY2hvcmQiOiBudWxsfV0=',
}

-- Whether a message surely has no callbacks, without decoding its body. A message that Celery does not write in exactly
-- this way may have some.
local function has_no_callbacks(raw)
  if string.sub(raw, 1, #OWN_HEAD) == OWN_HEAD and string.sub(raw, -#OWN_TAIL) == OWN_TAIL then return true end
  local m = decoded(raw)
  if not m then return false end
  local h, p, body = m['headers'], m['properties'], m['body']
  if type(h) ~= 'table' or type(p) ~= 'table' or type(body) ~= 'string' then return false end
  local plain = m['content-encoding'] == 'utf-8' and (h['compression'] or cjson.null) == cjson.null
  if not plain or p['body_encoding'] ~= 'base64' then return false end
  for _, tail in ipairs(WITHOUT_CALLBACKS) do
    if string.sub(body, -#tail) == tail then return true end
  end
  return false
end

-- Saves the end of a job for a worker; sweeps hand it out. A worker can read the callbacks (chain, chord, links) in the
-- message and send them, and it knows the stages of a pipeline. Keys of another type do no harm.
local function save_orphaned_end(queue, id, raw, meta, stages)
  if not stages and has_no_callbacks(raw) then return end
  local names, ends = keys.orphaned .. queue, keys.orphaned_ends .. queue
  if type(try('HSET', ends, id, #meta .. ':' .. meta .. raw)) == 'table' then return end
  if type(try('ZADD', names, NOW, id)) == 'table' then return end
  call('EXPIRE', ends, ORPHANED_TTL_S)
  call('EXPIRE', names, ORPHANED_TTL_S)
end
