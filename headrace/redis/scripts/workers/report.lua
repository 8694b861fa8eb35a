-- Save the report that a worker sends each second. It passes at maxmemory too, or the worker would look dead. KEYS: none.
-- ARGV: 1 owner, 2 how many values of fields follow, these, then per counter: key, field, and by how much it grows: a
--       number, or the numbers of a histogram with spaces between.
-- Returns how many workers there are, and 1 if this one shall drain.
local key, states, drain = keys.worker .. ARGV[1], tonumber(ARGV[2]), keys.drain .. ARGV[1]
call('HLEN', key); call('ZCARD', keys.WORKERS)
call('ZREMRANGEBYSCORE', keys.WORKERS, 0, time[1] - keys.WORKER_TTL_S)
call('HSET', key, unpack(ARGV, 3, 2 + states))
call('EXPIRE', key, keys.WORKER_TTL_S)
call('ZADD', keys.WORKERS, time[1], ARGV[1])
local function add_all(key, field, by)
  local old = try('HGET', key, field)
  if type(old) == 'table' then return end
  local before, sums, known = string.gmatch(old or '', '%S+'), {}, old and true
  for n in string.gmatch(by, '%S+') do
    local was = tonumber(before() or '')
    known = known and was
    sums[#sums + 1] = string.format('%.17g', tonumber(n) + (was or 0))
  end
  -- An unreadable counter starts again, as after a reset.
  try('HSET', key, field, known and table.concat(sums, ' ') or by)
end

-- A counter whose key has another type does not stop the others.
for i = 3 + states, #ARGV, 3 do
  local key, field, by = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if string.find(by, ' ', 1, true) then
    add_all(key, field, by)
  else
    try('HINCRBYFLOAT', key, field, by)
  end
end
return {call('ZCARD', keys.WORKERS), call('EXPIRE', drain, keys.DRAIN_TTL_S)}
