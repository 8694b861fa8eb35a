-- @include list_id
-- Create a batch, for the first runner that is free. KEYS: none.
-- ARGV: 1 id, 2 what was requested, 3 how many seconds it may take, 4 for how many seconds its record is kept after that,
--       5 the API key that owns it ('': none).
-- Returns its record, as HGETALL. A repeat makes no second batch.
local batch = keys.batch .. ARGV[1]
local lists = lists_of(keys.BATCHES, keys.batches_of, ARGV[5])
check_lists(lists)
redis.call('ZCARD', keys.OPEN_BATCHES)
if redis.call('HLEN', batch) == 0 then
  redis.call('HSET', batch, 'status', 'validating', 'spec', ARGV[2], 'created_at', time[1],
    'expires_at', whole(time[1] + tonumber(ARGV[3])), 'total', 0, 'completed', 0, 'failed', 0)
  redis.call('EXPIRE', batch, whole(tonumber(ARGV[3]) + tonumber(ARGV[4])))
  list_id(lists, ARGV[1], keys.batch)
  redis.call('ZADD', keys.OPEN_BATCHES, NOW, ARGV[1])
  redis.call('EXPIRE', keys.OPEN_BATCHES, keys.FILES_TTL_S)
end
return redis.call('HGETALL', batch)
