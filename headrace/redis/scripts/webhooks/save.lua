-- Save a webhook delivery, unless another process has changed it since it was read. KEYS: none.
-- ARGV: 1 job, 2 delivery, 3 its old text ('': it is new), 4 its new text, 5 for how many seconds the job's deliveries are
--       kept, 6 in how many us it is tried ('': never again), 7 the background task that tries it, 8 its body ('': as
--       before, '-': not needed any more), 9 the counter that grows by one ('': none), 10 the background worker that begins
--       (+ before it) or ends (-) to send it ('': neither), 11 the list of all jobs' deliveries that has it, and 12 the one
--       that has not, then deliveries of the job to delete.
-- A worker that begins without a heartbeat has died meanwhile: then the delivery is due at once.
-- Returns {1}, or {0, its text by now}.
local DUE, key, name = keys.DUE_DELIVERIES, keys.deliveries .. ARGV[1], ARGV[2]
local member = ARGV[1] .. ' ' .. name
local sign, worker = string.match(ARGV[10], '^([+-])(.+)$')
call('ZCARD', DUE)
local known = call('HGET', key, name) or ''
if known ~= ARGV[3] then return {0, known} end
call('ZREM', DUE, member)
call('HSET', key, name, ARGV[4])
if ARGV[8] == '-' then
  call('HDEL', key, 'b:' .. name)
elseif ARGV[8] ~= '' then
  call('HSET', key, 'b:' .. name, ARGV[8])
end
if ARGV[6] == '' then
  call('HDEL', key, 'm:' .. name)
else
  call('HSET', key, 'm:' .. name, ARGV[7])
  local dead = sign == '+' and call('EXISTS', keys.background_alive .. worker) == 0
  call('ZADD', DUE, dead and NOW or whole(NOW_US + tonumber(ARGV[6])), member)
end
if sign == '+' then
  try('SADD', keys.background_sending .. worker, member)
  call('EXPIRE', keys.background_sending .. worker, 3600)
elseif sign then
  try('SREM', keys.background_sending .. worker, member)
end
for i = 13, #ARGV do
  call('HDEL', key, ARGV[i], 'b:' .. ARGV[i], 'm:' .. ARGV[i])
  call('ZREM', DUE, ARGV[1] .. ' ' .. ARGV[i])
end
call('EXPIRE', key, ARGV[5])
try('ZREM', ARGV[12], member)
try('ZADD', ARGV[11], NOW, member)
try('ZREMRANGEBYRANK', ARGV[11], 0, -1 - keys.DELIVERIES_LISTED)
call('EXPIRE', ARGV[11], ARGV[5])
if ARGV[9] ~= '' then try('HINCRBY', keys.SHARED_STATS, ARGV[9], 1) end
return {1}
