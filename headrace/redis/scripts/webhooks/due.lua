-- Send the background tasks of webhook deliveries whose next try is due. KEYS: none. ARGV: 1 how many at most.
-- Returns {how many were due}.
local DUE = 'hr:hooks'
redis.call('LLEN', TASKS)
local due = redis.call('ZRANGEBYSCORE', DUE, '-inf', NOW, 'LIMIT', 0, ARGV[1])
if #due == 0 then return {0} end
in_chunks('ZREM', DUE, due)
for _, member in ipairs(due) do
  local id, name = string.match(member, '^(%S+) (%S+)$')
  local task = id and redis.pcall('HGET', HOOK .. id, 'm:' .. name)
  if type(task) == 'string' then redis.call('LPUSH', TASKS, task) end
end
return {#due}
