-- Cancel jobs, whatever their state, and say truly what that did. KEYS: none. ARGV: 1 queue prefix, then ids.
-- Returns per id: unknown, removed (it will not run), asked (it runs; its result will be discarded), or ended.
local function waits(state) return state == 'q' or state == 'd' end

local function cancel(id)
  local state, model, step, ttl, waiter = unpack(read(id, 's', 'm', 'p', 'l', 'w'))
  if not state then return 'unknown' end
  if state == 'r' then
    redis.call('HDEL', JOB .. id, 'cr')
    redis.call('HSET', JOB .. id, 'cr', '1')
    return 'asked'
  end
  if not waits(state) then return 'ended' end
  local queue = ARGV[1] .. model
  redis.call('ZREM', 'hr:delayed:' .. queue, id)
  redis.call('HDEL', 'hr:parked:' .. queue, id)
  if state == 'q' then
    -- The message stays listed; its tombstone outlives the record, so that a claim drops it however late.
    redis.call('HSET', 'hr:tomb:' .. queue, id, step)
    redis.call('HINCRBY', 'hr:count:' .. queue, 'tomb' .. step, 1)
  end
  finish_cancelled(id, ttl, waiter)
  return 'removed'
end

for i = 2, #ARGV do
  local state, model = unpack(read(ARGV[i], 's', 'm'))
  if waits(state) then
    local queue = ARGV[1] .. model
    redis.call('ZCARD', 'hr:delayed:' .. queue); redis.call('HLEN', 'hr:parked:' .. queue)
    redis.call('HLEN', 'hr:count:' .. queue); redis.call('HLEN', 'hr:tomb:' .. queue)
  end
end
local answer = {}
for i = 2, #ARGV do answer[i - 1] = cancel(ARGV[i]) end
return answer
