-- The names of queues: a model's own, and those of its versions.

-- The queue of a model's jobs that ask for no version, or of those that ask for this one.
local function queue_of(model, version) return keys.queue_name .. model .. (version and keys.VERSION_SEPARATOR .. version or '') end

-- The model of a queue, and its version; '' for a model's own queue.
local function model_of(queue) return string.match(queue, '^([^@]*)@?(.*)$', #keys.queue_name + 1) end
