-- Release the batches of a dead runner to the next one that is free. KEYS: none. ARGV: 1 runner.
-- Returns {how many batches}.
local released = 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', 'hr:batches:open', NOW, '+inf')) do
  if redis.pcall('HGET', 'hr:batch:' .. id, 'runner') == ARGV[1] then
    redis.call('ZADD', 'hr:batches:open', NOW, id)
    released = released + 1
  end
end
return {released}
