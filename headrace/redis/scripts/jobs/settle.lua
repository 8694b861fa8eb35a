-- @include-lazily finish
-- Settle jobs of one queue: results, records, leases and publications, fenced by token.
-- KEYS: the queue's. ARGV: 1 queue, 2 version that ran them, 3 how failures are kept (see
--       lib/failure.lua), then per job 12: id, token, outcome (s f x c), Celery result
--       JSON or '' (ignore_result), batch size, timings, extra field or '', its value, retry delay in us ('': none,
--       'dead': its message goes to the dead letters, and the value is the error's JSON), when it began in us ('': it has
--       not begun), for how many ms it waited for the device, how many tokens it used or '' (unknown).
-- Returns per job: 1 settled, 2 settled before by this token, 3 ended as cancelled, 4 waits for a retry, 0 the lease is lost.
local PER_JOB = 12
-- Results up to this length are published to listeners. A longer one is read from the record, so that Redis copies nothing.
local PUBLISHED_MAX_BYTES = 65536
local answer, ours, passed, waiting, ended_of = {}, {}, {}, {}, {}
-- Whether any job waits for a retry or becomes a dead letter.
local delays = false

-- A settled or scheduled record keeps its token, so that a repeat is recognized; a released one does not.
for i = 4, #ARGV, PER_JOB do
  local n = (i - 4) / PER_JOB + 1
  local id = ARGV[i]
  local job = keys.job .. id
  local r = try('HMGET', job, 't', 's', 'w', 'cr', 'l', 'a', 'ky', 'we', 'ws', 'pc', 'tk', 'o')
  if r.err then r = {} end
  if r[1] ~= ARGV[i + 1] or r[2] == 'q' then
    answer[n] = 0
  elseif r[2] ~= 'r' or passed[id] then
    answer[n] = 2
  else
    passed[id] = true
    ours[#ours + 1] = {i, n, r, id, job}
    delays = delays or ARGV[i + 8] ~= ''
  end
end
if #ours == 0 then return answer end

-- How many jobs of this call ended in each way, by the name in counters; `finish` counts its own.
local counted = {}

-- Schedules a job: for a retry, or for its eta.
local function schedule(i, id, attempts)
  local raw = call('HGET', KEYS[6], id)
  if not raw then
    -- Another program removed the message from `held`: there is nothing to retry.
    lib().keep_failures(ARGV[3])
    lib().finish_failed(id, nil, nil, 'ReplicaLost', 'replica-lost',
      'the message of the job was removed from Redis while it was leased', {}, ARGV[1])
    return 1
  end
  call('HSET', KEYS[9], id, raw)
  call('ZADD', KEYS[8], whole(NOW_US + tonumber(ARGV[i + 8])), id)
  -- A job that waits for its eta did not run: it has no error, and the attempt is undone.
  if ARGV[i + 7] ~= '' then
    call('HSET', keys.job .. id, 's', 'd', 'e', ARGV[i + 7])
    if ARGV[i + 9] ~= '' then call('HSET', keys.job .. id, 'st', ARGV[i + 9]) end
    call('HINCRBY', keys.job .. id, 'rn', 1)
    counted.retried = (counted.retried or 0) + 1
  else
    call('HSET', keys.job .. id, 's', 'd', 'a', math.max(0, (tonumber(attempts or '0') or 0) - 1))
  end
  return 4
end

-- Adds a job whose retries are used up to the dead letters; an operator may requeue it later.
local function dead_letter_failed(i, id, attempts)
  -- A member of a JSON object, if it is a string.
  local function text_in(json, name)
    local ok, object = pcall(cjson.decode, json)
    local text = ok and type(object) == 'table' and object[name]
    return type(text) == 'string' and text or ''
  end
  local raw = call('HGET', KEYS[6], id)
  if not raw then return end
  local step, created = unpack(lib().read(id, 'p', 'c'))
  lib().add_dead_letter(ARGV[1], id, ARGV[i + 1], text_in(ARGV[i + 7], 'type'), raw, text_in(ARGV[i + 7], 'message'),
    {id = id, step = step, attempts = attempts, created = created, traceback = text_in(ARGV[i + 3], 'traceback')})
  call('HSET', keys.job .. id, 'dl', '1')
end

-- Final states of a job that was claimed, but never started.
local NOT_RUN = {x = true, c = true}

-- ttl -> when a job that ends now expires, in ms.
local until_ms = {}

-- How many tokens a job used; nil if that is unknown. If a later attempt used nothing, earlier ones may have used some.
local function used_tokens(i, first)
  local used = tonumber(ARGV[i + 11])
  return (first or used ~= 0) and used or nil
end

local function settle(i, id, r, job)
  local ttl = r[5] or keys.DEFAULT_TTL_S
  local state, meta, field, value = ARGV[i + 2], ARGV[i + 3], ARGV[i + 6], ARGV[i + 7]
  local started, waited, first = ARGV[i + 9], ARGV[i + 10], r[6] == '1'
  counted[FINAL[state]] = (counted[FINAL[state]] or 0) + 1
  -- Only a job that was claimed more than once can have an error.
  if state == 's' and r[6] ~= '1' then call('HDEL', job, 'e') end
  if started == '' then
    call('HSET', job, 's', state, 'en', NOW, 'b', ARGV[i + 4], 'tm', ARGV[i + 5])
    if field ~= '' then call('HSET', job, field, value) end
    if NOT_RUN[state] then r[6] = lib().undo_start(id, r[6]) end
  elseif field ~= '' then
    call('HSET', job, 's', state, 'en', NOW, 'b', ARGV[i + 4], 'tm', ARGV[i + 5], 'st', started, 'dw', waited, field, value)
  else
    call('HSET', job, 's', state, 'en', NOW, 'b', ARGV[i + 4], 'tm', ARGV[i + 5], 'st', started, 'dw', waited)
  end
  if state == 'f' then
    lib().keep_failures(ARGV[3])
    ttl = lib().note_failure(ARGV[1], id, ttl, value, call('HGET', KEYS[6], id))
  end
  if not until_ms[ttl] then until_ms[ttl] = whole(math.floor(NOW_US / 1000) + tonumber(ttl) * 1000) end
  call('PEXPIREAT', job, until_ms[ttl])
  if r[10] then call('PEXPIREAT', keys.pieces .. id, until_ms[ttl]) end
  if r[7] then ended_of[r[7]] = (ended_of[r[7]] or 0) + 1 end
  if r[8] then lib().send_webhook_task(id, r[8], state, r[7]) end
  if r[11] then
    local used = used_tokens(i, first)
    -- A job that has never begun has used nothing.
    if started == '' and first then used = 0 end
    lib().end_tokens(ARGV[1], id, r[11], started ~= '', r[7], used)
  end
  if meta ~= '' then call('SET', keys.meta .. id, meta, 'EX', ttl) end
  if r[3] == keys.NO_WAITER then return 1 end
  -- Without a Celery result (ignore_result, or it is in the record) waiters read the record; Celery ignores this state.
  local listeners = call('PUBLISH', keys.meta .. id,
    meta ~= '' and meta or '{"status": "IGNORED", "task_id": "' .. id .. '"}')
  if not r[3] and listeners == 0 then return 1 end
  local ended = {id, state, started, NOW, r[6], ARGV[i + 4], ARGV[i + 5], field, value, meta,
    ARGV[i + 8] == 'dead' and '1' or '', waited, ARGV[2], r[12] or '',
    not first and call('HGET', job, 'pa') or ''}
  -- An API process may listen: this saves it reading the record.
  if listeners > 0 and #meta + #value <= PUBLISHED_MAX_BYTES then
    call('PUBLISH', keys.ended .. id, cmsgpack.pack({ended}))
  end
  if r[3] then
    local w = waiting[r[3]]
    if not w then w = {}; waiting[r[3]] = w end
    w[#w + 1] = ended
  end
  return 1
end

call('HLEN', KEYS[6])
if delays then call('ZCARD', KEYS[8]); call('HLEN', KEYS[9]); call('ZCARD', KEYS[10]) end
local ids = {}
for k, o in ipairs(ours) do ids[k] = o[4] end
local few = #ids <= CHUNK
if few then call('ZREM', KEYS[5], unpack(ids)) else lib().in_chunks('ZREM', KEYS[5], ids) end
for _, o in ipairs(ours) do
  local i, n, r, id, job = o[1], o[2], o[3], o[4], o[5]
  -- A start that jobs/start.lua has not announced, as the batch was short.
  if r[9] and ARGV[i + 9] ~= '' then lib().send_start_task(id, r[7], r[9]) end
  if r[4] then
    if ARGV[i + 9] ~= '' then call('HSET', job, 'st', ARGV[i + 9]) end
    if NOT_RUN[ARGV[i + 2]] then lib().undo_start(id, r[6]) end
    lib().finish_cancelled(id, r[5], r[3], ARGV[1], call('HGET', KEYS[6], id),
      used_tokens(i, r[6] == '1'))
    answer[n] = 3
  elseif ARGV[i + 8] ~= '' and ARGV[i + 8] ~= 'dead' then
    answer[n] = schedule(i, id, r[6])
  else
    if ARGV[i + 8] == 'dead' then dead_letter_failed(i, id, r[6]) end
    answer[n] = settle(i, id, r, job)
  end
end
if few then call('HDEL', KEYS[6], unpack(ids)) else lib().in_chunks('HDEL', KEYS[6], ids) end
-- As count_ended does.
local counters = keys.stats .. string.match(ARGV[1], '^[^@]*', #keys.queue_name + 1)
for word, n in pairs(counted) do try('HINCRBY', counters, 'ended:' .. word, n) end
for owner, n in pairs(ended_of) do lib().end_in_flight(owner, n) end
-- One publication for each waiting API process, with all that its replies to clients need.
for api, ended in pairs(waiting) do call('PUBLISH', keys.done_channel .. api, cmsgpack.pack(ended)) end
return answer
