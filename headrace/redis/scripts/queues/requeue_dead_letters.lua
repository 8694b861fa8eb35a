-- Put dead letters back at the end of their list, as the jobs that they were. KEYS: the queue's. ARGV: 1 queue, then
-- letters. Returns per letter: queued, unknown, unreadable (it is no job that could run), or alive (a job of its id
-- waits or runs, or came later and has ended as something of its own).
check_types(true)
local prefix = 'hr:letter:' .. ARGV[1] .. ':'
-- All that its last life left in the record; the client's own fields stay.
local LEFT = {'a', 'k', 'x', 't', 'o', 'st', 'en', 'b', 'tm', 'rt', 'e', 'tb', 'dl', 'cr', 'rn', 'fw', 'sg', 'pg'}

-- How long a requeued job that has no record may wait for its claim before its stored input is let go.
local UNCLAIMED_S = 30 * 86400

local function requeue(letter)
  local found = redis.pcall('HMGET', prefix .. letter, 'raw', 'id', 'step', 'created')
  local raw, id, step, born = found[1], found[2], found[3], found[4]
  if found.err or not raw then
    redis.call('ZREM', KEYS[10], letter)
    return 'unknown'
  end
  if not id or id == '' then return 'unreadable' end
  local state, owner, created = unpack(read(id, 's', 'ky', 'c'))
  -- The message of a cancelled job of that id is still listed; its tombstone would drop this one in its place.
  if (state and not FINAL[state]) or redis.call('HEXISTS', KEYS[11], id) == 1 then return 'alive' end
  -- A letter outlives its job's record; whose id was given to another meanwhile, perhaps of another model, is not to cost
  -- that its result.
  if created and created ~= born then return 'alive' end
  local s = STEP_INDEX[step or '0'] or 1
  redis.call('ZREM', KEYS[10], letter)
  redis.call('UNLINK', prefix .. letter, META .. id)
  local out = redis.call('HGET', KEYS[7], 'out' .. STEPS[s])
  local ticket = redis.call('LPUSH', KEYS[s], raw) + (tonumber(out or '0') or 0)
  -- Without a record (its result_ttl has passed) the message is as a stock client's: its claim makes a new one.
  if state then
    redis.call('HDEL', JOB .. id, unpack(LEFT))
    redis.call('HSET', JOB .. id, 's', 'q', 'n', ticket, 'j', NOW)
    redis.call('PERSIST', JOB .. id)
    -- It has ended, and is to end again. Its key's limit is for clients: who puts it back is an operator.
    if owner then redis.pcall('HINCRBY', IN_FLIGHT, owner, 1) end
  else
    -- Its input in the payload store is needed until it has run: the claim's record is to name it.
    local ref = string.match(raw, '"ref":"(%l[%l%d]*:%x+)"')
    -- Where another type is in the record's place, the claim says so.
    if ref and type(redis.pcall('HSET', JOB .. id, 'ir', ref)) == 'number' then
      redis.call('EXPIRE', JOB .. id, UNCLAIMED_S)
    end
  end
  return 'queued'
end

local answer = {}
for i = 2, #ARGV do answer[i - 1] = requeue(ARGV[i]) end
return answer
