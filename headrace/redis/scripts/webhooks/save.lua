-- Keep how far a webhook's delivery is, unless another has said so since it was read. KEYS: none.
-- ARGV: 1 job, 2 delivery, 3 what it was ('' = new), 4 what it is, 5 for how many seconds the job's deliveries are kept, 6 in
--       how many us it is to be tried ('' = no more), 7 the errand that tries it, 8 its body ('' = as before, '-' = not
--       needed any more), 9 what is counted ('' = nothing), then deliveries of the job that are to be forgotten.
-- Returns {1}, or {0, what it is by now}.
local DUE, key, name = 'hr:hooks', HOOK .. ARGV[1], ARGV[2]
local member = ARGV[1] .. ' ' .. name
redis.call('ZCARD', DUE)
local known = redis.call('HGET', key, name) or ''
if known ~= ARGV[3] then return {0, known} end
redis.call('ZREM', DUE, member)
redis.call('HSET', key, name, ARGV[4])
if ARGV[8] == '-' then
  redis.call('HDEL', key, 'b:' .. name)
elseif ARGV[8] ~= '' then
  redis.call('HSET', key, 'b:' .. name, ARGV[8])
end
if ARGV[6] == '' then
  redis.call('HDEL', key, 'm:' .. name)
else
  redis.call('HSET', key, 'm:' .. name, ARGV[7])
  redis.call('ZADD', DUE, whole(NOW_US + tonumber(ARGV[6])), member)
end
for i = 10, #ARGV do
  redis.call('HDEL', key, ARGV[i], 'b:' .. ARGV[i], 'm:' .. ARGV[i])
  redis.call('ZREM', DUE, ARGV[1] .. ' ' .. ARGV[i])
end
redis.call('EXPIRE', key, ARGV[5])
if ARGV[9] ~= '' then redis.pcall('HINCRBY', 'hr:stats:', ARGV[9], 1) end
return {1}
