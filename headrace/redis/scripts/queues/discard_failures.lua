-- @include queues, failure
-- Let failures go: their entries, messages and dead letters. The jobs stay failed, and their records are kept as long as
-- results. KEYS: the queue's. ARGV: 1 queue, then entries of the failures of its model. Returns per entry 1, or 0 if it is of
-- another queue of the model, or was gone before.
check_types(true)
local index = keys.failures .. model_of(ARGV[1])
call('ZCARD', index)

local function discard(entry)
  local id = string.match(entry, '(%S+)$')
  local state, model, version, owner, created, ttl, group = unpack(read(id, 's', 'm', 'pv', 'ky', 'c', 'l', 'fg'))
  if state ~= 'f' or not group or failure_entry(group, created, owner, id) ~= entry then
    return call('ZREM', index, entry)
  end
  if queue_of(model, version) ~= ARGV[1] then return 0 end
  local failed_us = call('ZSCORE', index, entry)
  forget_failure(id)
  call('ZREM', KEYS[10], id)
  call('UNLINK', keys.letters .. ARGV[1] .. ':' .. id)
  keep_as_result(id, failed_us, ttl)
  return failed_us and 1 or 0
end

local answer = {}
for i = 2, #ARGV do answer[i - 1] = discard(ARGV[i]) end
return answer
