-- @include finish, queues
-- Cancel waiting jobs of a queue, up to a limit. KEYS: the queue's. ARGV: 1 queue, 2 limit.
-- Returns {cancelled, removed, left}: jobs that were cancelled, messages removed from the lists and the delayed set (also
-- tombstones, repeats and unreadable ones), and how many messages are left.
local limit, cancelled, removed = tonumber(ARGV[2]), 0, 0
check_types(true)

local function id_in(raw)
  local m = decoded(raw)
  local headers = m and m['headers']
  local id = type(headers) == 'table' and headers['id']
  return valid_id(id) and id or nil
end

-- Cancels a waiting job. A message without a record is a stock client's, which waits for a result too. A message under the
-- id of another queue's job is ignored, and that job goes on.
local function cancel(id, raw)
  local state, ttl, waiter, model, version = unpack(read(id, 's', 'l', 'w', 'm', 'pv'))
  if state and state ~= 'q' and state ~= 'd' then return end
  if model and queue_of(model, version) ~= ARGV[1] then return end
  finish_cancelled(id, ttl, waiter, ARGV[1], raw)
  cancelled = cancelled + 1
end

local function purge_list(s)
  local raws = call('LRANGE', KEYS[s], -(limit - removed), -1)
  if #raws == 0 then return end
  call('LTRIM', KEYS[s], 0, -(#raws + 1))
  call('HINCRBY', KEYS[7], 'out' .. STEPS[s], #raws)
  for k = #raws, 1, -1 do
    local id = raws[k] ~= TOMBSTONE and id_in(raws[k])
    local step = id and call('HGET', KEYS[11], id)
    if not id and raws[k] == TOMBSTONE then
      call('HINCRBY', KEYS[7], 'tomb' .. STEPS[s], -1)
    elseif step then
      call('HDEL', KEYS[11], id)
      call('HINCRBY', KEYS[7], 'tomb' .. step, -1)
      save_orphaned_end(ARGV[1], id, raws[k], meta_json(id, 'REVOKED', REVOKED))
    elseif id then
      cancel(id, raws[k])
    end
  end
  removed = removed + #raws
end

begin_with_removal(KEYS[5])
for s = 1, 4 do
  if removed < limit then purge_list(s) end
end
if removed < limit then
  for _, id in ipairs(call('ZRANGE', KEYS[8], 0, limit - removed - 1)) do
    local raw = call('HGET', KEYS[9], id)
    call('ZREM', KEYS[8], id)
    call('HDEL', KEYS[9], id)
    cancel(id, raw)
    removed = removed + 1
  end
end
local left = call('ZCARD', KEYS[8])
for s = 1, 4 do left = left + call('LLEN', KEYS[s]) end
return {cancelled, removed, left}
