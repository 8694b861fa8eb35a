-- @include finish, remove_queued
-- End jobs that wait though they must have begun by now, of whatever queue: also where nobody serves it. What a worker holds
-- is for that to judge, and is looked at again, as is what waits in a queue whose keys are another's. KEYS: none. ARGV: 1 queue prefix, 2 how many to look at, 3 the code of
-- such an end, 4 its class in headrace.errors, 5 its message. Returns {how many were looked at, now}.
local AGAIN_US = 60000000
local LIMIT = tonumber(ARGV[2])
local due = redis.pcall('ZRANGEBYSCORE', EXPIRING, '-inf', NOW, 'LIMIT', 0, LIMIT)
if due.err or #due == 0 then return {0, NOW} end
local ERROR = cjson.encode({type = ARGV[3], message = ARGV[5], retryable = false})

local over, again = {}, {}
for _, id in ipairs(due) do
  local state, model, step, ttl, waiter, ticket = unpack(read(id, 's', 'm', 'p', 'l', 'w', 'n'))
  if model and waits(state) then
    local queue = ARGV[1] .. model
    if pcall(check_waiting, queue) then
      over[#over + 1] = {id, queue, state, step, ticket, ttl, waiter}
    else
      again[#again + 1] = id
    end
  elseif state == 'r' then
    again[#again + 1] = id
  end
end
pass_at_maxmemory(EXPIRING)
in_chunks('ZREM', EXPIRING, due)
for _, id in ipairs(again) do redis.call('ZADD', EXPIRING, whole(NOW_US + AGAIN_US), id) end
-- Where they were all that the key held, it has just been made anew.
if #again > 0 then redis.call('EXPIRE', EXPIRING, EXPIRING_TTL_S) end
for _, o in ipairs(over) do
  local id, queue, state, step, ticket, ttl, waiter = unpack(o, 1, 7)
  local raw = withdraw(queue, id, state, step, ticket)
  finish(id, ttl or DEFAULT_TTL_S, waiter, failed_json(id, ARGV[4], ARGV[5]), {'s', 'x', 'en', NOW, 'e', ERROR}, queue, raw)
end
compact()
return {#due, NOW}
