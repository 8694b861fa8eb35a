-- Save the status that a run reports. KEYS: none.
-- ARGV: 1 run, 2 its status, 3 '1' if a process has just started it, 4 TTL in s, 5 how many runs of an API key are kept,
--       6 the API key that reports (-: none).
-- Returns {1 if its end was requested since, else 0; -1 if the run belongs to another key}.
local RUNS, RUN, OWN = keys.RUNS, keys.run .. ARGV[1], keys.runs_of .. ARGV[6]
call('HLEN', RUN)
call('ZCARD', RUNS)
call('ZCARD', OWN)
if (call('HGET', RUN, 'ky') or ARGV[6]) ~= ARGV[6] then return {-1} end
if ARGV[3] == '1' then call('HDEL', RUN, 'cancel') end
call('HSET', RUN, 'told', ARGV[2], 'at', NOW, 'ky', ARGV[6])
call('EXPIRE', RUN, ARGV[4])
for _, index in ipairs({RUNS, OWN}) do
  call('ZADD', index, NOW, ARGV[1])
  call('EXPIRE', index, ARGV[4])
end
call('ZREMRANGEBYRANK', RUNS, 0, -1 - tonumber(ARGV[5]))
for _, old in ipairs(call('ZRANGE', OWN, 0, -1 - tonumber(ARGV[5]))) do
  call('ZREM', OWN, old)
  if try('HGET', keys.run .. old, 'ky') == ARGV[6] then
    call('ZREM', RUNS, old)
    call('UNLINK', keys.run .. old)
  end
end
return {call('HEXISTS', RUN, 'cancel')}
