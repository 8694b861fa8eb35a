-- Shared by every script: put in front of each by headrace/scripts/__init__.py.
-- KEYS of a script on one queue: 1..4 lists best first, 5 lease, 6 held, 7 count, 8 delayed, 9 parked, 10 dead,
-- 11 tomb.
-- No script fails after its first write: keys of the wrong type are found before it, and what a record or a
-- message may lack is asked for. The pass_at_maxmemory of a script stands before its other writes.
local STEPS = {'0', '3', '6', '9'}
local STEP_INDEX = {['0'] = 1, ['3'] = 2, ['6'] = 3, ['9'] = 4}
local JOB, META, DONE, ENDED = 'hr:job:', 'celery-task-meta-', 'hr:done:', 'hr:ended:'
local NEWS = 'hr:news:'
local CANCELLED, REVOKED_IDS = 'hr:cancel:', 'hr:revoked'
-- By when jobs must have begun, until then; longer than any job may be scheduled for.
local EXPIRING, EXPIRING_TTL_S = 'hr:expiring', 62 * 86400
local PAYLOADS, PAYLOAD_SIZES, PAYLOAD = 'hr:payloads', 'hr:payloads:size', 'hr:payload:'
-- Errands, and what webhooks need to know of a job's end; see headrace/webhooks.
local ERRANDS, HOOK, HOOK_TTL_S = 'headrace:errands', 'hr:hook:', 7 * 86400
-- API key -> its jobs that have not ended.
local IN_FLIGHT = 'hr:inflight'
-- The states of a record that has ended, and what counters call them.
local FINAL = {s = 'succeeded', f = 'failed', x = 'expired', c = 'cancelled'}
local DEFAULT_TTL_S = '86400'
-- In place of the API process that waits for a job's end: nobody does, until one says so (listen.lua).
local NOBODY = '-'
-- A model's jobs by the time of their submit. Without a new one it outlives what may be scheduled, and then kept, longest.
local INDEX, INDEX_TTL_S = 'hr:jobs:', 62 * 86400
-- Lua's unpack takes some 8,000 values at most.
local CHUNK = 1000

-- Stands in a list where a cancelled job's message was, so that its neighbours keep their places. A stock worker that
-- reads the list takes it for a message of nobody and drops it. The tomb counter of its step counts it.
local GONE = '{"headers":{},"properties":{"delivery_tag":"gone","delivery_info":{"exchange":"","routing_key":""}},'
  .. '"body":"","content-encoding":"utf-8","content-type":"application/x-headrace-cancelled"}'

-- The oldest job of a list is looked for among so many messages of its end.
local HEADS = 64

-- Looking these up in their table costs Valkey a fifth of a short command, each time.
local call, try = redis.call, redis.pcall

local time = redis.call('TIME')
local NOW = time[1] .. string.format('%06d', time[2])
local NOW_US = tonumber(NOW)

-- Lua writes 1.7e15 with 14 digits; Redis is given whole microseconds.
local function whole(n) return string.format('%.0f', n) end

local function list_of(queue, s)
  if s == 1 then return queue end
  return queue .. '\6\22' .. STEPS[s]
end

-- A removal of nothing: at maxmemory Redis refuses a script whose first write could grow, and lets
-- one pass that began by removing.
local function pass_at_maxmemory(zset) call('ZREM', zset, '') end

-- Reads each of a queue's own keys as what it should be, so that a wrong type errs before any write.
local function check_types(lists)
  if lists then for s = 1, 4 do call('LLEN', KEYS[s]) end end
  for k = 5, 11 do call((k == 5 or k == 8 or k == 10) and 'ZCARD' or 'HLEN', KEYS[k]) end
end

-- One command on many members, in calls that Lua can take. An even CHUNK keeps pairs together.
local function in_chunks(command, key, args)
  for i = 1, #args, CHUNK do
    call(command, key, unpack(args, i, math.min(i + CHUNK - 1, #args)))
  end
end

-- Adds {created, id, ...} to a model's index and keeps its newest. It is only a view: where the key is another's
-- the jobs are what they are without it. `most` may be exceeded by some jobs: single submits trim every 16th time.
local function index_jobs(model, entries, most)
  if most <= 0 or #entries == 0 then return end
  local index = INDEX .. model
  for i = 1, #entries, CHUNK do
    local added = try('ZADD', index, unpack(entries, i, math.min(i + CHUNK - 1, #entries)))
    if type(added) == 'table' then return end
  end
  call('EXPIRE', index, INDEX_TTL_S)
  if most < 1000 or NOW_US % 16 < #entries / 2 then call('ZREMRANGEBYRANK', index, 0, -(most + 1)) end
end

-- Fields of a record; none where the key is no record at all, so that one odd key hinders no neighbour.
local function read(id, ...)
  local r = try('HMGET', JOB .. id, ...)
  if r.err then return {} end
  return r
end

-- Sorts {id, token} for give_back: the one that was claimed last goes first, so that the one that was claimed
-- first stands at the head again.
local function latest_first(claims)
  table.sort(claims, function(a, b) return a.token > b.token end)
  return claims
end
