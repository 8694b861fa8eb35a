-- Lease the batch that has waited longest to a runner: a new one, or one whose runner is gone. KEYS: none.
-- ARGV: 1 us of the lease, 2 the runner. Returns {id, token, seconds since 1970, its record as HGETALL...}; {} where none waits.
pass_at_maxmemory('hr:batches:open')
while true do
  local id = redis.call('ZRANGEBYSCORE', 'hr:batches:open', '-inf', NOW, 'LIMIT', 0, 1)[1]
  if not id then return {} end
  local batch = 'hr:batch:' .. id
  if redis.call('HEXISTS', batch, 'status') == 1 then
    local token = redis.call('INCR', 'hr:token')
    redis.call('HSET', batch, 'token', token, 'runner', ARGV[2])
    redis.call('ZADD', 'hr:batches:open', whole(NOW_US + tonumber(ARGV[1])), id)
    local answer = redis.call('HGETALL', batch)
    for _, value in ipairs({time[1], token, id}) do table.insert(answer, 1, value) end
    return answer
  end
  redis.call('ZREM', 'hr:batches:open', id)
end
