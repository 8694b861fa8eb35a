-- Create a batch, for the first runner that is free. KEYS: none.
-- ARGV: 1 id, 2 what was requested, 3 how many seconds it may take, 4 for how many seconds its record is kept after that,
-- 5 for how many the lists are kept. Returns its record, as HGETALL. A repeat makes no second batch.
local batch = 'hr:batch:' .. ARGV[1]
redis.call('ZCARD', 'hr:batches')
redis.call('ZCARD', 'hr:batches:open')
if redis.call('HLEN', batch) == 0 then
  redis.call('HSET', batch, 'status', 'validating', 'spec', ARGV[2], 'created_at', time[1],
    'expires_at', whole(time[1] + tonumber(ARGV[3])), 'total', 0, 'completed', 0, 'failed', 0)
  redis.call('EXPIRE', batch, whole(tonumber(ARGV[3]) + tonumber(ARGV[4])))
  redis.call('ZADD', 'hr:batches', 0, ARGV[1])
  redis.call('ZADD', 'hr:batches:open', NOW, ARGV[1])
  redis.call('EXPIRE', 'hr:batches', ARGV[5])
  redis.call('EXPIRE', 'hr:batches:open', ARGV[5])
end
return redis.call('HGETALL', batch)
