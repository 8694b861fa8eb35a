-- @include queues, failure
-- For scripts on failures of a queue. ARGV: 1 queue, then entries of the failures of its model.
check_types(true)
local failures = keys.failures .. model_of(ARGV[1])
call('ZCARD', failures)

-- The failed job of an entry. Where the entry has none: nil, why (gone, elsewhere), and how many entries it removed.
local function failed_job(entry)
  local id = string.match(entry, '(%S+)$')
  local state, model, version, owner, created, group = unpack(read(id, 's', 'm', 'pv', 'ky', 'c', 'fg'))
  if state ~= 'f' or not group or failure_entry(group, created, owner, id) ~= entry then
    return nil, 'gone', call('ZREM', failures, entry)
  end
  if queue_of(model, version) ~= ARGV[1] then return nil, 'elsewhere', 0 end
  return id
end

local function for_each_entry(act)
  local answer = {}
  for i = 2, #ARGV do answer[i - 1] = act(ARGV[i]) end
  return answer
end
