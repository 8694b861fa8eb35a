-- Lease the batch that has waited longest to a runner: a new one, or one whose runner is gone. KEYS: none.
-- ARGV: 1 us of the lease, 2 the runner. Returns {id, token, seconds since 1970, its record as HGETALL...}; {} where none waits.
local OPEN, gone, id = 'hr:batches:open', {}, nil
-- What is no batch (any more), whatever its key is now, is passed over.
repeat
  gone[#gone + 1] = id
  id = redis.call('ZRANGEBYSCORE', OPEN, '-inf', NOW, 'LIMIT', #gone, 1)[1]
until not id or redis.pcall('HEXISTS', 'hr:batch:' .. id, 'status') == 1

pass_at_maxmemory(OPEN)
local token = id and redis.call('INCR', 'hr:token')
in_chunks('ZREM', OPEN, gone)
if not id then return {} end
local batch = 'hr:batch:' .. id
redis.call('HSET', batch, 'token', token, 'runner', ARGV[2])
redis.call('ZADD', OPEN, whole(NOW_US + tonumber(ARGV[1])), id)
local answer = redis.call('HGETALL', batch)
for _, value in ipairs({time[1], token, id}) do table.insert(answer, 1, value) end
return answer
