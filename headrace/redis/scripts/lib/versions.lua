-- @include queue_name
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
