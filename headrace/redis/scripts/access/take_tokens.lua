-- @include bucket
-- Take tokens of an API key's rate from a bucket that holds one second's worth, and at least one token.
-- KEYS: none. ARGV: 1 API key, 2 tokens a second, 3 how many are wanted, 4 the fewest that are of use.
-- Returns {how many were taken, us until there are enough to be of use (0: there were)}.
local key, rate = keys.rate .. ARGV[1], tonumber(ARGV[2])
local wanted, least = tonumber(ARGV[3]), tonumber(ARGV[4])
local room = math.max(1, rate, least)
local tokens = level_of(key, rate, math.max(1, rate), room)
local taken, wait = 0, 0
if tokens >= least then
  taken = math.min(wanted, math.floor(tokens))
else
  wait = math.ceil((least - tokens) / rate * 1e6)
end
set_level(key, tokens - taken, rate, room)
return {taken, wait}
