-- @include queues
-- Read the depth of queues. KEYS: none. ARGV: queues. The own queue of a model counts with those of its versions; the queue
-- of a version alone.
-- Returns {now, then per queue {waiting at steps 0, 3, 6, 9, delayed, leased, dead, then when the oldest of each step was
-- created, or '', then tokens of all jobs that have not ended, if it counts them, then how many delayed jobs are due}}.
-- The oldest is searched for at the heads of the lists. A stock client's message has no time, and a job that was delayed
-- counts from when it joined its list.
local function id_in(raw)
  local at = string.find(raw, '"id"', 1, true)
  return at and string.match(raw, '^"id": ?"([^"\\]+)"', at)
end

local function waiting_since(list)
  for i = 1, HEADS do
    local raw = call('LINDEX', list, -i)
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
  local n = try(command, key)
  return type(n) == 'number' and n or 0
end

-- The state of one queue, as in the reply.
local function look(queue)
  local tombs = try('HMGET', keys.count .. queue, 'tomb0', 'tomb3', 'tomb6', 'tomb9', 'tokens')
  local row = {}
  for s = 1, 4 do
    local list = list_of(queue, s)
    local length = size('LLEN', list)
    row[s] = math.max(0, length - (tonumber(tombs[s] or '0') or 0))
    row[7 + s] = row[s] > 0 and waiting_since(list) or ''
  end
  row[5] = size('ZCARD', keys.delayed .. queue)
  row[6] = size('ZCARD', keys.lease .. queue)
  row[7] = size('ZCARD', keys.dead .. queue)
  row[12] = tonumber(tombs[5] or '0') or 0
  local due = row[5] > 0 and try('ZCOUNT', keys.delayed .. queue, '-inf', NOW)
  row[13] = type(due) == 'number' and due or 0
  return row
end

-- Adds the state of a version's queue to that of its model.
local function add(row, more)
  for k = 1, 7 do row[k] = row[k] + more[k] end
  row[12] = row[12] + more[12]
  row[13] = row[13] + more[13]
  for k = 8, 11 do
    if more[k] ~= '' and (row[k] == '' or tonumber(more[k]) < tonumber(row[k])) then row[k] = more[k] end
  end
end

-- A version whose queue has been empty for so long is forgotten.
local FORGET_US = 3600 * 1000000

local function add_versions(row, queue)
  local model, version = model_of(queue)
  local found = version == '' and try('ZRANGE', keys.versions .. model, 0, -1, 'WITHSCORES') or {}
  for k = 1, #found, 2 do
    local own = queue_of(model, found[k])
    if is_used(own) then
      add(row, look(own))
    elseif tonumber(found[k + 1]) < NOW_US - FORGET_US then
      call('ZREM', keys.versions .. model, found[k])
    end
  end
end

local answer = {NOW}
for q = 1, #ARGV do
  local row = look(ARGV[q])
  add_versions(row, ARGV[q])
  answer[q + 1] = row
end
return answer
