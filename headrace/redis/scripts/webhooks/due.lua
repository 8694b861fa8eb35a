-- @include callbacks
-- Send the background tasks of webhook deliveries whose next try is due, then those whose turn it is. KEYS: none.
-- ARGV: 1 how many deliveries at most. Returns {how many were due, how many tasks wait for their turn}.
local DUE, WAITING = keys.DUE_DELIVERIES, keys.WAITING_TASKS
local room = TASKS_MAX - call('LLEN', keys.BACKGROUND_TASKS)
local due = call('ZRANGEBYSCORE', DUE, '-inf', NOW, 'LIMIT', 0, ARGV[1])
if #due > 0 then
  in_chunks('ZREM', DUE, due)
  for _, member in ipairs(due) do
    local id, name = string.match(member, '^(%S+) (%S+)$')
    local found = id and try('HMGET', keys.deliveries .. id, 'm:' .. name, name)
    if found and found[1] then push_task(string.match(found[2] or '', '"owner":"(%x*)"'), found[1]) end
  end
end
if call('EXISTS', WAITING) == 0 then return {#due, 0} end
if room > 0 then
  local next = call('ZPOPMIN', WAITING, room)
  for i = 1, #next, 2 do call('LPUSH', keys.BACKGROUND_TASKS, next[i]) end
  if #next > 0 then call('HSET', keys.TASK_TURNS, ':now', next[#next]) end
end
local waiting = call('ZCARD', WAITING)
if waiting == 0 then call('DEL', keys.TASK_TURNS) end
return {#due, waiting}
