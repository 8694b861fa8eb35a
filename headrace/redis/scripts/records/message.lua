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

-- Whether a message is that of the job. The names and metadata that clients choose are in messages too, so that one of
-- another job may hold the same id.
local own, quoted = OWN_HEAD .. id .. '"', '"' .. id .. '"'
local function is_its(raw)
  if string.sub(raw, 1, #OWN_HEAD) == OWN_HEAD then return string.sub(raw, 1, #own) == own end
  if not string.find(raw, quoted, 1, true) then return false end
  local ok, m = pcall(cjson.decode, raw)
  return ok and type(m) == 'table' and type(m['headers']) == 'table' and m['headers']['id'] == id
end

-- First the place itself, then those around it, a few at a time: messages may be long.
local FEW, BYTES_MAX = 8, 33554432
local read_bytes = 0
local function among(from, to)
  local raws = try('LRANGE', list, -to, -from)
  if raws.err then return nil end
  for _, raw in ipairs(raws) do
    read_bytes = read_bytes + #raw
    if is_its(raw) then return raw end
  end
end

local raw = among(at, at)
for near = 1, HEADS, FEW do
  if raw or read_bytes > BYTES_MAX then break end
  raw = among(at + near, at + near + FEW - 1)
  if not raw and at > near then raw = among(math.max(1, at - near - FEW + 1), at - near) end
end
return raw or false
