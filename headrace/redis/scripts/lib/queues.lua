-- The names of queues: a model's own, and those of its versions.

-- The queue of a model's jobs that ask for no version, or of those that ask for this one.
local function queue_of(model, version) return keys.queue_name .. model .. (version and keys.VERSION_SEPARATOR .. version or '') end

-- The model of a queue, and its version; '' for a model's own queue.
local function model_of(queue) return string.match(queue, '^([^@]*)@?(.*)$', #keys.queue_name + 1) end

-- The queues of the versions of a model.

-- Notes that the queue of a version is in use. A key of another type does no harm.
local function note_version(model, version)
  try('ZADD', keys.versions .. model, NOW, version)
  call('EXPIRE', keys.versions .. model, INDEX_TTL_S)
end

-- Whether a queue has jobs, dead letters, or callbacks that are still to be sent.
local function is_used(queue)
  return call('EXISTS', list_of(queue, 1), list_of(queue, 2), list_of(queue, 3), list_of(queue, 4), keys.lease .. queue,
    keys.delayed .. queue, keys.dead .. queue, keys.orphaned .. queue) > 0
end

-- Whether nothing is claimed from a queue: it is paused itself, or its model's own queue is.
local function is_paused(queue)
  if call('SISMEMBER', keys.PAUSED, queue) == 1 then return true end
  local model, version = model_of(queue)
  return version ~= '' and call('SISMEMBER', keys.PAUSED, queue_of(model)) == 1
end

-- The place of waiting jobs in their queue, for scripts that read many.
local lengths, outs = {}, {}

local function length_of(list)
  if not lengths[list] then
    local n = try('LLEN', list)
    lengths[list] = type(n) == 'number' and n or 0
  end
  return lengths[list]
end

-- The place of a queued job; 1 is next. It is approximate: jobs that returned to the head after this one was queued are
-- counted, and cancelled jobs behind it are not subtracted.
local function place_of(queue, step, ticket)
  local s = STEP_INDEX[step] or 1
  local field = 'out' .. STEPS[s]
  local key = queue .. ' ' .. field
  if not outs[key] then
    local out = try('HGET', keys.count .. queue, field)
    outs[key] = type(out) == 'string' and tonumber(out) or 0
  end
  local place = tonumber(ticket) - outs[key]
  for better = 1, s - 1 do place = place + length_of(list_of(queue, better)) end
  return math.max(1, place)
end

-- When a scheduled job is due, in us; 0 if that is unknown.
local function due_of(queue, id)
  local due = try('ZSCORE', keys.delayed .. queue, id)
  return type(due) == 'string' and tonumber(due) or 0
end
