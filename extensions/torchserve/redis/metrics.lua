-- Add to TorchServe's metrics of one host. It passes at maxmemory too: the number of metrics has a limit.
-- KEYS: none. ARGV: 1 host, 2 the most metrics of a model, then per change: model, metric, and what it changes by: a number
--       (a counter), '=' and a number (a gauge), the numbers of a histogram with spaces between, or '' (it only lives on).
-- Returns how many changes were left out, as their model has too many metrics.
local LIVE, PREFIX, left_out, seen = keys.METRICS, keys.metrics, 0, {}
redis.call('ZREMRANGEBYSCORE', LIVE, 0, time[1] - keys.METRICS_TTL_S)

local function add_all(key, field, by)
  local before, sums = string.gmatch(redis.call('HGET', key, field) or '', '%S+'), {}
  for n in string.gmatch(by, '%S+') do
    sums[#sums + 1] = string.format('%.17g', tonumber(n) + (tonumber(before() or '') or 0))
  end
  redis.call('HSET', key, field, table.concat(sums, ' '))
end

for i = 3, #ARGV, 3 do
  local member, field, by = ARGV[1] .. ' ' .. ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local key = PREFIX .. member
  if seen[key] == nil then
    -- A key of another type is left alone.
    seen[key] = type(redis.pcall('HLEN', key)) == 'number'
  end
  if seen[key] and by ~= '' then
    local full = redis.call('HLEN', key) >= tonumber(ARGV[2]) and redis.call('HEXISTS', key, field) == 0
    if full then
      left_out = left_out + 1
    elseif string.sub(by, 1, 1) == '=' then
      redis.call('HSET', key, field, string.sub(by, 2))
    elseif string.find(by, ' ', 1, true) then
      add_all(key, field, by)
    else
      redis.pcall('HINCRBYFLOAT', key, field, by)
    end
  end
end
for key, known in pairs(seen) do
  if known and redis.call('EXPIRE', key, keys.METRICS_TTL_S) == 1 then
    redis.call('ZADD', LIVE, time[1], string.sub(key, #PREFIX + 1))
  end
end
redis.call('EXPIRE', LIVE, keys.METRICS_TTL_S)
return left_out
