-- End the pair of a job and its shadow copy and count how they compare, or replace it by one that has more outcomes.
-- KEYS: none. ARGV: 1 the pair, then either 2 a model and 3 a field of its statistics, or 2 '', 3 the new pair and 4 when
-- to look at it. Returns 1; 0 if another process has ended or replaced the pair.
local SHADOW, stats = keys.SHADOW, keys.stats .. ARGV[2]
if ARGV[2] ~= '' then call('HLEN', stats) end
if call('ZREM', SHADOW, ARGV[1]) == 0 then return 0 end
if ARGV[2] ~= '' then
  call('HINCRBY', stats, ARGV[3], 1)
else
  call('ZADD', SHADOW, ARGV[4], ARGV[3])
end
return 1
