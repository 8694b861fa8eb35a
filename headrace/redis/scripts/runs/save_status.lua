-- Keep what a run tells of itself. KEYS: none.
-- ARGV: 1 its id, 2 what it tells, 3 '1' where a process has just begun with it, 4 TTL in s, 5 how many runs are kept,
-- 6 the API key that tells (-: nobody).
-- Returns {1 where its end was asked for since, else 0; -1 where the run is another key's}.
local RUNS, RUN = 'hr:runs', 'hr:run:' .. ARGV[1]
redis.call('HLEN', RUN)
redis.call('ZCARD', RUNS)
if (redis.call('HGET', RUN, 'ky') or ARGV[6]) ~= ARGV[6] then return {-1} end
if ARGV[3] == '1' then redis.call('HDEL', RUN, 'cancel') end
redis.call('HSET', RUN, 'told', ARGV[2], 'at', NOW, 'ky', ARGV[6])
redis.call('EXPIRE', RUN, ARGV[4])
redis.call('ZADD', RUNS, NOW, ARGV[1])
redis.call('EXPIRE', RUNS, ARGV[4])
redis.call('ZREMRANGEBYRANK', RUNS, 0, -1 - tonumber(ARGV[5]))
return {redis.call('HEXISTS', RUN, 'cancel')}
