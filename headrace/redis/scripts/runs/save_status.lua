-- Save the status that a run reports. KEYS: none.
-- ARGV: 1 run, 2 its status, 3 '1' if a process has just started it, 4 TTL in s, 5 how many runs are kept, 6 the API key that
--       reports (-: none).
-- Returns {1 if its end was requested since, else 0; -1 if the run belongs to another key}.
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
