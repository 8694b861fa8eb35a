-- Release the batches of a dead runner to the next one that is free. KEYS: none. ARGV: 1 runner.
-- Returns {how many batches}.
local released = 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', keys.OPEN_BATCHES, NOW, '+inf')) do
  if redis.pcall('HGET', keys.batch .. id, 'runner') == ARGV[1] then
    redis.call('ZADD', keys.OPEN_BATCHES, NOW, id)
    released = released + 1
  end
end
return {released}
