-- Read the depth of queues. KEYS: none. ARGV: queues.
-- Returns {now, then per queue {waiting at steps 0, 3, 6, 9, delayed, leased, dead, then when the oldest of each step was
-- created, or ''}}.
-- The oldest is searched for at the heads of the lists. A stock client's message has no time, and a job that was delayed
-- counts from when it joined its list.
local function id_in(raw)
  local at = string.find(raw, '"id"', 1, true)
  return at and string.match(raw, '^"id": ?"([^"\\]+)"', at)
end

local function waiting_since(list)
  for i = 1, HEADS do
    local raw = redis.call('LINDEX', list, -i)
    if not raw then return nil end
    if raw ~= TOMBSTONE then
      local id = id_in(raw)
      local state, created, joined = unpack(id and read(id, 's', 'c', 'j') or {})
      if not state then return nil end
      if state == 'q' then return joined or created end
    end
  end
end

-- A key of the wrong type counts as empty, so that the other queues can be read.
local function size(command, key)
  local n = redis.pcall(command, key)
  return type(n) == 'number' and n or 0
end

local answer = {NOW}
for q = 1, #ARGV do
  local queue = ARGV[q]
  local tombs = redis.pcall('HMGET', 'hr:count:' .. queue, 'tomb0', 'tomb3', 'tomb6', 'tomb9')
  local row = {}
  for s = 1, 4 do
    local list = list_of(queue, s)
    local length = size('LLEN', list)
    row[s] = math.max(0, length - (tonumber(tombs[s] or '0') or 0))
    row[7 + s] = row[s] > 0 and waiting_since(list) or ''
  end
  row[5] = size('ZCARD', 'hr:delayed:' .. queue)
  row[6] = size('ZCARD', 'hr:lease:' .. queue)
  row[7] = size('ZCARD', 'hr:dead:' .. queue)
  answer[q + 1] = row
end
return answer
