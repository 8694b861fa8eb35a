-- Lease the batch that has waited longest: a new batch, or one whose runner is dead. KEYS: none.
-- ARGV: 1 us of the lease, 2 the runner. Returns {id, token, now in s, its record as HGETALL...}; {} if none waits.
local OPEN, gone, id = keys.OPEN_BATCHES, {}, nil
-- An id whose batch is gone, or whose key has another type, is skipped and removed.
repeat
  gone[#gone + 1] = id
  id = redis.call('ZRANGEBYSCORE', OPEN, '-inf', NOW, 'LIMIT', #gone, 1)[1]
until not id or redis.pcall('HEXISTS', keys.batch .. id, 'status') == 1

begin_with_removal(OPEN)
local token = id and redis.call('INCR', keys.TOKEN)
in_chunks('ZREM', OPEN, gone)
if not id then return {} end
local batch = keys.batch .. id
redis.call('HSET', batch, 'token', token, 'runner', ARGV[2])
redis.call('ZADD', OPEN, whole(NOW_US + tonumber(ARGV[1])), id)
local answer = redis.call('HGETALL', batch)
for _, value in ipairs({time[1], token, id}) do table.insert(answer, 1, value) end
return answer
