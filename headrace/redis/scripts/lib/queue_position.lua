-- The place of waiting jobs in their queue, for scripts that read many.
local lengths, outs = {}, {}

local function length_of(list)
  if not lengths[list] then
    local n = redis.pcall('LLEN', list)
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
    local out = redis.pcall('HGET', keys.count .. queue, field)
    outs[key] = type(out) == 'string' and tonumber(out) or 0
  end
  local place = tonumber(ticket) - outs[key]
  for better = 1, s - 1 do place = place + length_of(list_of(queue, better)) end
  return math.max(1, place)
end

-- When a scheduled job is due, in us; 0 if that is unknown.
local function due_of(queue, id)
  local due = redis.pcall('ZSCORE', keys.delayed .. queue, id)
  return type(due) == 'string' and tonumber(due) or 0
end
