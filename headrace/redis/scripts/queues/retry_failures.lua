-- @include waiting, queues
-- Put failed jobs back at the end of their list, as the jobs that they were. KEYS: the queue's. ARGV: 1 queue, then entries
-- of the failures of its model. Returns per entry: queued, elsewhere (it is of another queue of the model), gone (the job
-- was deleted, retried or replaced), alive (its message is still listed), or no-message (it cannot be retried).
check_types(true)
local index = keys.failures .. model_of(ARGV[1])
call('ZCARD', index)

local function retry(entry)
  local id = string.match(entry, '(%S+)$')
  local state, model, version, owner, created, step, group = unpack(read(id, 's', 'm', 'pv', 'ky', 'c', 'p', 'fg'))
  if state ~= 'f' or not group or failure_entry(group, created, owner, id) ~= entry then
    call('ZREM', index, entry)
    return 'gone'
  end
  if queue_of(model, version) ~= ARGV[1] then return 'elsewhere' end
  if call('HEXISTS', KEYS[11], id) == 1 then return 'alive' end
  local letter = keys.letters .. ARGV[1] .. ':' .. id
  local raw = try('GET', keys.failed .. id)
  if type(raw) ~= 'string' then raw = try('HGET', letter, 'raw') end
  if type(raw) ~= 'string' then return 'no-message' end
  call('ZREM', KEYS[10], id)
  call('UNLINK', letter)
  requeue_job(ARGV[1], STEP_INDEX[step or '0'] or 1, id, raw, state, owner)
  return 'queued'
end

local answer = {}
for i = 2, #ARGV do answer[i - 1] = retry(ARGV[i]) end
return answer
