-- Lease the batch whose window ends first: a new batch, or one whose runner is dead. KEYS: none.
-- ARGV: 1 us of the lease, 2 the runner, 3 before when its window must end, in s (absent or '': at any time).
-- Returns {id, token, now in s, its record as HGETALL...}; {} if none waits.
local OPEN, gone, id, first = keys.OPEN_BATCHES, {}, nil, tonumber(ARGV[3] or '') or math.huge
-- Of so many that have waited longest one is chosen, so that a call does not block Redis.
local LOOK_MAX = 256
-- An id whose batch is gone, or whose key has another type, is removed.
for _, waiting in ipairs(redis.call('ZRANGEBYSCORE', OPEN, '-inf', NOW, 'LIMIT', 0, LOOK_MAX)) do
  local r = redis.pcall('HMGET', keys.batch .. waiting, 'status', 'expires_at')
  if r.err or not r[1] then
    gone[#gone + 1] = waiting
  elseif (tonumber(r[2] or '') or 0) < first then
    id, first = waiting, tonumber(r[2] or '') or 0
  end
end

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
