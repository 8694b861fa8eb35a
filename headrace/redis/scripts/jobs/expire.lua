-- @include finish, waiting, queues
-- End waiting jobs of any queue that must have started by now, also in a queue that no worker serves. If a worker holds a
-- job, that worker decides; the job is looked at again later. So is a job in a queue whose keys have another type.
-- KEYS: none. ARGV: 1 how many to look at, 2 the code of the error, 3 its class in headrace.errors, 4 its message.
-- Returns {how many were looked at, now}.
local AGAIN_US = 60000000
local LIMIT = tonumber(ARGV[1])
local due = try('ZRANGEBYSCORE', keys.EXPIRING, '-inf', NOW, 'LIMIT', 0, LIMIT)
if due.err or #due == 0 then return {0, NOW} end
local ERROR = cjson.encode({type = ARGV[2], message = ARGV[4], retryable = false})

local over, again = {}, {}
for _, id in ipairs(due) do
  local state, model, step, ttl, waiter, ticket, version = unpack(read(id, 's', 'm', 'p', 'l', 'w', 'n', 'pv'))
  if model and waits(state) then
    local queue = queue_of(model, version)
    if pcall(check_waiting, queue) then
      over[#over + 1] = {id, queue, state, step, ticket, ttl, waiter}
    else
      again[#again + 1] = id
    end
  elseif state == 'r' then
    again[#again + 1] = id
  end
end
begin_with_removal(keys.EXPIRING)
in_chunks('ZREM', keys.EXPIRING, due)
for _, id in ipairs(again) do call('ZADD', keys.EXPIRING, whole(NOW_US + AGAIN_US), id) end
-- If the key held nothing else, it is a new key without a TTL now.
if #again > 0 then call('EXPIRE', keys.EXPIRING, EXPIRING_TTL_S) end
for _, o in ipairs(over) do
  local id, queue, state, step, ticket, ttl, waiter = unpack(o, 1, 7)
  local raw = remove_queued(queue, id, state, step, ticket)
  finish(id, ttl, waiter, failed_json(id, ARGV[3], ARGV[4]), {'s', 'x', 'en', NOW, 'e', ERROR}, queue, raw)
end
compact()
return {#due, NOW}
