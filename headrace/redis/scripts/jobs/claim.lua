-- @include-lazily finish, trace, queues
-- Claim up to N messages of one queue, best priority first, and lease them in the same call.
-- KEYS: the queue's (see lib/keys.lua). ARGV: 1 queue, 2 model, 3 version of the caller, which the records then name,
--       4 max jobs, 5 max bytes, 6 lease in us, 7 owner, 8 task name, 9 TTL in s of the result of a refused message, or of
--       one without a record, 10 as jobs/submit.lua's first, 11 to 13 how many jobs there may be when those of step 3, 6
--       and 9 are taken (default: as 4), 14 after how many us of waiting a job is taken although better ones leave no room
--       (0: never); it is then one more than the limit. 15 how failures are kept
--       (see lib/failure.lua).
-- Returns {now, left in the list of each step (the first is -1 if the queue is paused), refused, then per job: raw ('' if it
-- is withheld, see lib/release.lua), id, token,
-- created or '', attempts, alone, retries, step (and after a space, except for step 0, since when it waits in its list, if
-- that is not `created`)}.
-- Phase 1 only reads. Whatever can be wrong with a message is found there, so that nothing fails after the first write. No
-- message is popped without being leased, added to the dead letters, or known to have ended.
local queue, model, version = ARGV[1], ARGV[2], ARGV[3]
-- The version that all jobs of this queue ask for; nil in a model's own queue.
local asked = string.match(queue, '@(.*)$')
local max_jobs, max_bytes, owner, task = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[7], ARGV[8]
local most, yield_us = {max_jobs}, tonumber(ARGV[14] or '0')
for s = 2, 4 do most[s] = tonumber(ARGV[9 + s] or '') or max_jobs end
local lease_end = whole(NOW_US + tonumber(ARGV[6]))
-- Dropped messages are limited too, so that a row of tombstones blocks Redis no longer than a batch does.
local SCAN_MAX, DROPPED_MAX_BYTES = max_jobs + 512, 8 * max_bytes

local find, part = string.find, string.sub
-- What follows the id in our own messages.
local AFTER_ID = '","task":"' .. task .. '",'
local jobs, refused = {}, {}
local consumed, tombs, tombs_of, entombed = {0, 0, 0, 0}, {}, {}, {}
-- {id, message} of cancelled jobs whose message was found here.
local dropped = {}
local seen, bytes, dropped_bytes, scanned, full = {}, 0, 0, 0, false
local revoked = {}

-- The id of a message that begins and ends as ours, whatever characters the id has. Parsing our own messages would take a
-- third of a claim's time, so that they are recognized by their two ends. If one is forged, the worker, which parses all of
-- it, fails it under its id and adds its bytes to the dead letters.
local function own_id(raw)
  local after = find(raw, '"', #OWN_HEAD + 1, true)
  if not after or after > #OWN_HEAD + 129 or part(raw, 1, #OWN_HEAD) ~= OWN_HEAD then return nil end
  if part(raw, after, after + #AFTER_ID - 1) ~= AFTER_ID or part(raw, -#OWN_TAIL) ~= OWN_TAIL then return nil end
  return part(raw, #OWN_HEAD + 1, after - 1)
end

-- Parses a message. Returns why it is no job, or nil, and its id if that can be used; then its `traceparent`, or nil; and
-- for a message without such an id the one under which its client waits, or nil.
local function parsed(raw)
  -- The id of a message of protocol 1 is in its properties alone.
  local function named(m, id)
    local p = m['properties']
    if id == nil and type(p) == 'table' then id = p['correlation_id'] end
    if type(id) == 'number' then id = whole(id) end
    return type(id) == 'string' and id ~= '' and id or nil
  end

  local ok, m = pcall(cjson.decode, raw)
  if not ok then m = lib().decoded(raw) end
  if type(m) ~= 'table' then return 'not-json' end
  local h = m['headers']
  if type(h) ~= 'table' then return 'no-headers' end
  if not lib().valid_id(h['id']) then
    local why, id = h['id'] == nil and h['task'] == nil and 'no-headers' or 'no-id', named(m, h['id'])
    if lib().valid_id(id) then return why, id end
    return why, nil, nil, id
  end
  if type(m['body']) ~= 'string' then return 'no-body', h['id'] end
  if m['content-type'] ~= 'application/json' then return 'content-type', h['id'] end
  if h['task'] ~= task then return 'not-our-task', h['id'] end
  return nil, h['id'], h['traceparent']
end

-- One command for all keys that most queues do not have.
local rare = call('EXISTS', keys.PAUSED, KEYS[2], KEYS[3], KEYS[4], KEYS[8], KEYS[9], KEYS[10], KEYS[11]) > 0
if rare and lib().is_paused(queue) then return {NOW, -1, 0, 0, 0, 0} end
if rare then lib().check_types(false) end
local lengths = {call('LLEN', KEYS[1]), 0, 0, 0}
if rare then for s = 2, 4 do lengths[s] = call('LLEN', KEYS[s]) end end
local any_tombs = rare and call('HLEN', KEYS[11]) > 0

-- Whether a readable message must not run: cancelled, leased already, ended, or a repeat.
local function known(id, state)
  if seen[id] then return true end
  if not state or state == 'r' then return call('HEXISTS', KEYS[6], id) == 1 end
  if state == 'd' then return call('HEXISTS', KEYS[9], id) == 1 end
  return FINAL[state]
end

-- Whether a Celery client has revoked a job without a record: another client's message, which was unknown then.
local function is_revoked(id)
  local until_us = try('ZSCORE', keys.REVOKED, id)
  return type(until_us) == 'string' and tonumber(until_us) > NOW_US
end

-- Decides on a message: it becomes a job, is refused, or is dropped.
local function examine(raw, s)
  if raw == TOMBSTONE then
    tombs_of[STEPS[s]] = (tombs_of[STEPS[s]] or 0) + 1
    return
  end
  local id = own_id(raw)
  local record = id and keys.job .. id
  local r = id and try('HMGET', record, 's', 'm', 'c', 'a', 'j')
  local why, parent, waits_as
  if not r or ((r.err or not r[1]) and not lib().valid_id(id)) then
    -- If there is a record, the id was checked when it was written.
    r, why, id, parent, waits_as = nil, parsed(raw)
  end
  if not why then
    if any_tombs and not entombed[id] then
      local step = call('HGET', KEYS[11], id)
      if step then
        entombed[id] = true
        tombs[#tombs + 1] = id
        dropped[#dropped + 1] = {id, raw}
        tombs_of[step] = (tombs_of[step] or 0) + 1
        return
      end
    end
    if not r then
      record = keys.job .. id
      r = try('HMGET', record, 's', 'm', 'c', 'a', 'j')
    end
    if r.err then
      why, id = 'record-of-another-type', nil
    elseif r[1] and (r[2] ~= model or asked and call('HGET', record, 'pv') ~= asked) then
      why, id = 'id-in-another-queue', nil
    elseif known(id, r[1]) then
      return
    elseif not r[1] and is_revoked(id) then
      seen[id] = true
      revoked[#revoked + 1] = {id, s, raw}
      return
    else
      seen[id] = true
      -- A job that was not claimed before neither runs alone nor has retries.
      if r[4] then r[6], r[7], r[8], r[9] = unpack(call('HMGET', record, 'x', 'rn', 'o', 'pa')) end
      jobs[#jobs + 1] = {raw, id, s, r, record, parent}
      bytes = bytes + #raw
      return
    end
  end
  refused[#refused + 1] = {raw, why, id, waits_as}
end

-- The next messages of a list, the oldest last. It is as many as will be taken if they are as long as the longest so
-- far. So hardly more bytes are read than taken. Redis 6.2 (which does not give its version) walks to LRANGE's start
-- from the left, so that it reads one message at a time.
local READ_MAX = redis.REDIS_VERSION_NUM and 32 or 1
local longest = max_bytes

local function look_at_list(s, enough)
  local key, raws, at = KEYS[s], nil, 0
  while not full and #jobs < enough and scanned < SCAN_MAX do
    local before, rest = #jobs, lengths[s] - consumed[s]
    if rest == 0 then return end
    if at == 0 then
      at = math.min(READ_MAX, enough - before, rest, math.floor((max_bytes - bytes) / longest))
      if at < 2 then
        raws, at = {call('LINDEX', key, -1 - consumed[s])}, 1
      else
        raws = call('LRANGE', key, -at - consumed[s], -1 - consumed[s])
      end
    end
    local raw = raws[at]
    at = at - 1
    if longest == max_bytes or #raw > longest then longest = #raw end
    full = #jobs > 0 and bytes + #raw > max_bytes
    if full then return end
    examine(raw, s)
    if #jobs == before then dropped_bytes = dropped_bytes + #raw end
    consumed[s] = consumed[s] + 1
    scanned = scanned + 1
    full = bytes >= max_bytes or dropped_bytes >= DROPPED_MAX_BYTES
  end
end

-- A stock client's message has no time of its own. It counts from when, as the oldest of its list, better jobs were
-- first taken before it. That time is noted, with how many messages had been taken from the list by then: {field, note,
-- ...}.
local notes = {}

-- The list whose oldest job is the most overdue, behind better jobs that leave no room for it.
local function overdue_list()
  -- As `parsed`, but our own messages need not be parsed.
  local function refusal(raw)
    local own = own_id(raw)
    if own and lib().valid_id(own) then return nil, own end
    return parsed(raw)
  end

  local function passed_over(s)
    local field = 'passed' .. STEPS[s]
    local out, note = unpack(call('HMGET', KEYS[7], 'out' .. STEPS[s], field))
    local taken, at = string.match(note or '', '^(%-?%d+) (%d+)$')
    out = out or '0'
    if taken == out then return at end
    notes[#notes + 1] = field
    notes[#notes + 1] = out .. ' ' .. NOW
  end

  -- Since when the oldest job of a list waits there; nil if that is unknown, or no job is among its first messages.
  local function waits_since(s)
    for i = 1, HEADS do
      local raw = call('LINDEX', KEYS[s], -i)
      if not raw then return nil end
      local why, id
      if raw ~= TOMBSTONE then why, id = refusal(raw) end
      if id and not why then
        local state, joined, created = unpack(lib().read(id, 's', 'j', 'c'))
        if state == 'q' then return joined or created end
        if not state then return passed_over(s) end
      end
    end
  end

  local found, since = nil, whole(NOW_US - yield_us)
  local better = lengths[1]
  for s = 2, 4 do
    if better > 0 and better >= most[s] and lengths[s] > 0 then
      local at = waits_since(s)
      if at and tonumber(at) <= tonumber(since) then found, since = s, at end
    end
    better = better + lengths[s]
  end
  return found, since
end

local extra, overdue, overdue_since = 0, nil, nil
if yield_us > 0 and rare then overdue, overdue_since = overdue_list() end
if overdue then
  look_at_list(overdue, 1)
  extra = #jobs
end
for s = 1, 4 do look_at_list(s, most[s] + extra) end
local left = {}
for s = 1, 4 do left[s] = lengths[s] - consumed[s] end
if scanned == 0 then return {NOW, left[1], left[2], left[3], left[4], 0} end
-- A wrong type fails here, before anything is written.
if not rare then call('ZCARD', KEYS[5]); call('HLEN', KEYS[6]); call('HLEN', KEYS[7]) end
-- A client may wait for a refused message with a readable id: it gets a result, unless the id has a record or a result.
for _, r in ipairs(refused) do
  local id = r[3]
  if id and (seen[id] or call('EXISTS', keys.job .. id, keys.meta .. id) > 0) then r[3] = nil end
  if id then seen[id] = true end
end

call('ZREM', KEYS[5], '')  -- see begin_with_removal
-- The only key whose type is not checked by now: it fails before any other write.
local token = call('INCRBY', keys.TOKEN, #jobs + #refused) - #jobs - #refused
if #notes > 0 then call('HSET', KEYS[7], unpack(notes)) end
local answer = {NOW, left[1], left[2], left[3], left[4], #refused}
for s = 1, 4 do
  if consumed[s] > 0 then call('HINCRBY', KEYS[7], 'out' .. STEPS[s], consumed[s]) end
end
for step, n in pairs(tombs_of) do call('HINCRBY', KEYS[7], 'tomb' .. step, -n) end
if #tombs > 0 then
  local s = lib()
  s.in_chunks('HDEL', KEYS[11], tombs)
  for _, d in ipairs(dropped) do s.save_orphaned_end(queue, d[1], d[2], s.meta_json(d[1], 'REVOKED', REVOKED)) end
end

-- {created, id, ...} of jobs that get their record here: those of stock clients.
local fresh = {}

-- Notes which worker had an attempt that has ended without a result: lines of its number and the worker, the newest
-- five. An orderly release undoes the attempt after it, so that its number may be noted already.
local function note_attempt(record, attempt, worker, noted)
  local lines = noted or ''
  if attempt <= (tonumber(string.match(lines, '(%d+) [^\n]*$') or '') or 0) then return end
  if select(2, string.gsub(lines, '\n', '')) >= 4 then lines = string.match(lines, '\n(.*)$') end
  call('HSET', record, 'pa', (lines ~= '' and lines .. '\n' or '') .. attempt .. ' ' .. worker)
end

local function lease(j, leases, helds)
  local raw, id, r, record = j[1], j[2], j[4], j[5]
  local attempts = r[4] and (tonumber(r[4]) or 0) + 1 or 1
  token = token + 1
  -- The same as whole(token), which takes three times as long.
  local fence = token < 1e14 and token .. '' or whole(token)
  local n = #leases
  leases[n + 1], leases[n + 2] = lease_end, id
  helds[n + 1], helds[n + 2] = id, raw
  if r[1] then
    call('HSET', record, 's', 'r', 't', fence, 'o', owner, 'a', attempts, 'v', version)
    -- It starts when its batch does; this is the start of an attempt before.
    if r[4] then call('HDEL', record, 'st') end
    if attempts > 1 and r[8] then note_attempt(record, attempts - 1, r[8], r[9]) end
  else
    call('HSET', record, 's', 'r', 't', fence, 'o', owner, 'a', attempts,
      'm', model, 'v', version, 'c', NOW, 'p', STEPS[j[3]], 'l', ARGV[9])
    if asked then call('HSET', record, 'pv', asked) end
    local trace = j[6] and lib().trace_id_in(j[6])
    if trace then call('HSET', record, 'tr', trace) end
    fresh[#fresh + 1] = NOW
    fresh[#fresh + 1] = id
  end
  local a = #answer
  answer[a + 1], answer[a + 2], answer[a + 3], answer[a + 4] = r[6] == '3' and '' or raw, id, fence, r[3] or ''
  answer[a + 5], answer[a + 6], answer[a + 7] = attempts, r[6] or '', r[7] or ''
  answer[a + 8] = STEPS[j[3]]
  if r[5] and j[3] > 1 then answer[a + 8] = STEPS[j[3]] .. ' ' .. r[5] end
end

local leases, helds = {}, {}
if extra > 0 and not jobs[1][4][1] then jobs[1][4][5] = overdue_since end
for _, j in ipairs(jobs) do lease(j, leases, helds) end
if #leases > CHUNK then
  lib().in_chunks('ZADD', KEYS[5], leases)
  lib().in_chunks('HSET', KEYS[6], helds)
elseif #leases > 0 then
  call('ZADD', KEYS[5], unpack(leases))
  call('HSET', KEYS[6], unpack(helds))
end

-- Adds a message that is no job to the dead letters, and ends it if it has an id.
local function refuse(r)
  local function sentence(why)
    return ({
      ['not-json'] = 'the message is not JSON',
      ['no-headers'] = 'the message has no headers: only Celery protocol 2 is served, set task_protocol to 2',
      ['no-id'] = 'the message has no id that can be used: 1 to 128 letters, digits and -_.:@/',
      ['no-body'] = 'the message has no body',
      ['content-type'] = 'the content type is not application/json: send with the serializer json',
      ['not-our-task'] = 'only the task ' .. task .. ' is served here',
      ['id-in-another-queue'] = 'the id is that of a job of another model or version',
      ['record-of-another-type'] = 'the key of the record is not a hash',
    })[why]
  end
  local s = lib()
  token = token + 1
  local raw, why, id, fence = r[1], r[2], r[3], whole(token)
  s.add_dead_letter(queue, id or ('raw-' .. fence), fence, why, raw, sentence(why), {})
  if id then
    s.keep_failures(ARGV[15])
    s.finish_failed(id, ARGV[9], nil, 'InvalidRequest', 'invalid-request', sentence(why),
      {'m', model, 'v', version, 'c', NOW, 'dl', '1'}, queue, raw)
    fresh[#fresh + 1] = NOW
    fresh[#fresh + 1] = id
  elseif why == 'no-id' or why == 'no-headers' then
    -- It has no record to end, but a client or a chord may wait for it.
    local as = r[4]
    local meta = s.failed_json(as and string.sub(cjson.encode(as), 2, -2) or 'raw-' .. fence, 'InvalidRequest', sentence(why))
    if as and call('EXISTS', keys.meta .. as) == 0 then
      call('SET', keys.meta .. as, meta, 'EX', ARGV[9])
      call('PUBLISH', keys.meta .. as, meta)
    end
    s.save_orphaned_end(queue, 'raw-' .. fence, raw, meta)
  end
end

for _, r in ipairs(refused) do refuse(r) end
for _, r in ipairs(revoked) do
  call('HSET', keys.job .. r[1], 'm', model, 'v', version, 'c', NOW, 'p', STEPS[r[2]], 'l', ARGV[9])
  lib().finish_cancelled(r[1], ARGV[9], nil, queue, r[3])
  fresh[#fresh + 1] = NOW
  fresh[#fresh + 1] = r[1]
end
if #fresh > 0 then
  if asked then lib().note_version(model, asked) end
  lib().index_jobs(model, fresh, tonumber(ARGV[10] or '0'))
end
for s = 1, 4 do
  if consumed[s] > 0 then call('LTRIM', KEYS[s], 0, -(consumed[s] + 1)) end
end
return answer
