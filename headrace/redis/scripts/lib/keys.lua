-- Shared by every script: put in front of each by headrace/redis/scripts/__init__.py. A function costs a call some 0.5 us to
-- define, called or not, so that what not all need stands in the files that follow.
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
-- In place of the API process that waits for a job's end: nobody does, until one says so (jobs/listen.lua).
local NOBODY = '-'
-- A model's jobs by the time of their submit. Without a new one it outlives what may be scheduled, and then kept, longest.
local INDEX, INDEX_TTL_S = 'hr:jobs:', 62 * 86400
-- Lua's unpack takes some 8,000 values at most.
local CHUNK = 1000

-- Stands in a list where a cancelled job's message was, so that its neighbours keep their places. A stock worker that
-- reads the list takes it for a message of nobody and drops it. The tomb counter of its step counts it.
local GONE = '{"headers":{},"properties":{"delivery_tag":"gone","delivery_info":{"exchange":"","routing_key":""}},'
  .. '"body":"","content-encoding":"utf-8","content-type":"application/x-headrace-cancelled"}'

-- How the messages begin and end that headrace.jobs.message.envelope writes, and nobody else does by chance.
local OWN_HEAD = '{"headers":{"id":"'
local OWN_TAIL = '","content-encoding":"utf-8","content-type":"application/json"}'
-- The result, in Celery's words, of a job that was cancelled.
local REVOKED = '{"exc_type": "TaskRevokedError", "exc_message": ["cancelled"], "exc_module": "celery.exceptions"}'

-- The oldest job of a list is looked for among so many messages of its end.
local HEADS = 64

-- Looking these up in their table costs Valkey a fifth of a short command, each time.
local call, try = redis.call, redis.pcall

local time = redis.call('TIME')
local NOW = time[1] .. string.format('%06d', time[2])
local NOW_US = tonumber(NOW)

-- Lua writes 1.7e15 with 14 digits; Redis is given whole microseconds.
local function whole(n) return string.format('%.0f', n) end
