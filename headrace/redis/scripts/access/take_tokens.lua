-- Take tokens of an API key's rate from a bucket that holds one second's worth, and at least one token.
-- KEYS: none. ARGV: 1 API key, 2 tokens a second, 3 how many are wanted, 4 the fewest that are of use.
-- Returns {how many were taken, us until there are enough to be of use (0: there were)}.
local key, rate = keys.rate .. ARGV[1], tonumber(ARGV[2])
local wanted, least = tonumber(ARGV[3]), tonumber(ARGV[4])
local room = math.max(1, rate, least)
local tokens, at = string.match(redis.call('GET', key) or '', '^(%S+) (%d+)$')
tokens, at = tonumber(tokens) or math.max(1, rate), tonumber(at) or NOW_US
tokens = math.min(room, tokens + math.max(0, NOW_US - at) / 1e6 * rate)
local taken, wait = 0, 0
if tokens >= least then
  taken = math.min(wanted, math.floor(tokens))
else
  wait = math.ceil((least - tokens) / rate * 1e6)
end
-- The key expires when the bucket is full again.
redis.call('SET', key, string.format('%.6f', tokens - taken) .. ' ' .. NOW, 'PX',
  math.ceil(room / rate * 1000) + 1000)
return {taken, wait}
