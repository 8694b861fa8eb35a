-- Constants and times that every script uses. Defining a function costs a call about 0.5 us, so that functions which
-- only some scripts need are in the files that those include.
-- KEYS of a script on one queue: 1..4 lists, best priority first, 5 lease, 6 held, 7 count, 8 delayed, 9 parked,
-- 10 dead, 11 tomb.
-- No script fails after its first write. Keys of the wrong type are found before it. Whatever a record or a message may
-- lack is checked first. The function begin_with_removal comes before all other writes.
local STEPS = {'0', '3', '6', '9'}
local STEP_INDEX = {['0'] = 1, ['3'] = 2, ['6'] = 3, ['9'] = 4}
-- The TTLs of keys.EXPIRING and of an index of jobs: longer than a job may be scheduled and then kept.
local EXPIRING_TTL_S, INDEX_TTL_S = 62 * 86400, 62 * 86400
-- Behind the token in a record's mark of an isolated run: nothing else runs in the worker, or will soon.
local EXCLUSIVE, RESERVED = 'w', 'r'
-- The final states of a record, and their names in counters.
local FINAL = {s = 'succeeded', f = 'failed', x = 'expired', c = 'cancelled'}
-- Lua's unpack takes about 8,000 values at most.
local CHUNK = 1000

-- Replaces the message of a cancelled job in its list, so that its neighbours keep their places. A stock worker that
-- reads the list drops it as a message of an unknown task. The tomb counter of its step counts it.
local TOMBSTONE = '{"headers":{},"properties":{"delivery_tag":"gone","delivery_info":{"exchange":"","routing_key":""}},'
  .. '"body":"","content-encoding":"utf-8","content-type":"application/x-headrace-cancelled"}'

-- How the messages of headrace.jobs.message_writer begin and end, and no other client's do by chance.
local OWN_HEAD = '{"headers":{"id":"'
local OWN_TAIL = '","content-encoding":"utf-8","content-type":"application/json"}'
-- The result of a cancelled job, as Celery writes it.
local REVOKED = '{"exc_type": "TaskRevokedError", "exc_message": ["cancelled"], "exc_module": "celery.exceptions"}'

-- The oldest job of a list is searched for among this many messages at its end.
local HEADS = 64

-- Looking these up in their table costs Valkey a fifth of a short command, each time.
local call, try = redis.call, redis.pcall

local time = call('TIME')
local NOW = time[1] .. string.format('%06d', time[2])
local NOW_US = tonumber(NOW)

-- Lua writes 1.7e15 with 14 digits; Redis needs whole microseconds.
local function whole(n) return string.format('%.0f', n) end
