-- @include queues
-- Read the message of a job that has not ended. KEYS: none. ARGV: id. Returns the message, or false if it is not found.
-- A ticket names the place of a message, unless neighbours were released or the list was compacted.
local id = ARGV[1]
local state, model, step, ticket, version = unpack(read(id, 's', 'm', 'p', 'n', 'pv'))
if not state or not model then return false end
local queue = queue_of(model, version)

local function found(raw) return type(raw) == 'string' and raw or false end

if state == 'r' then return found(try('HGET', keys.held .. queue, id)) end
if state == 'd' then return found(try('HGET', keys.parked .. queue, id)) end
if state ~= 'q' or not ticket then return false end
local out = try('HGET', keys.count .. queue, 'out' .. (step or '0'))
-- A job that returned to the head before another one may have a place before the first.
local at = math.max(1, tonumber(ticket) - (type(out) == 'string' and tonumber(out) or 0))
local list = list_of(queue, STEP_INDEX[step] or 1)
-- First the place itself, then those around it.
for _, span in ipairs({{at, at}, {at + HEADS, math.max(1, at - HEADS)}}) do
  local raws = try('LRANGE', list, -span[1], -span[2])
  if raws.err then return false end
  for _, raw in ipairs(raws) do
    if string.find(raw, '"id":"' .. id .. '"', 1, true) or string.find(raw, '"id": "' .. id .. '"', 1, true) then
      return raw
    end
  end
end
return false
