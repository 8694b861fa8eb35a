-- Functions that most scripts use. jobs/claim.lua and jobs/settle.lua reach them by `lib()` alone.
local function list_of(queue, s)
  if s == 1 then return queue end
  return queue .. '\6\22' .. STEPS[s]
end

-- Removes nothing. At maxmemory Redis refuses a script whose first write could grow its memory, and lets a script pass
-- that begins with a removal.
local function begin_with_removal(zset) call('ZREM', zset, '') end

-- Reads each of a queue's own keys as the type that it should have, so that a wrong type fails before any write.
local function check_types(lists)
  if lists then for s = 1, 4 do call('LLEN', KEYS[s]) end end
  for k = 5, 11 do call((k == 5 or k == 8 or k == 10) and 'ZCARD' or 'HLEN', KEYS[k]) end
end

-- Sends one command for many members, in calls that Lua can take. An even CHUNK keeps pairs together.
local function in_chunks(command, key, args)
  for i = 1, #args, CHUNK do
    call(command, key, unpack(args, i, math.min(i + CHUNK - 1, #args)))
  end
end

-- Adds {created, id, ...} to a model's index and keeps its newest. The index is only a view: if its key has another
-- type, the jobs do without it. There may be some more jobs than `most`: single submits trim every 16th time.
local function index_jobs(model, entries, most)
  if most <= 0 or #entries == 0 then return end
  local index = keys.job_index .. model
  for i = 1, #entries, CHUNK do
    local added = try('ZADD', index, unpack(entries, i, math.min(i + CHUNK - 1, #entries)))
    if type(added) == 'table' then return end
  end
  call('EXPIRE', index, INDEX_TTL_S)
  if most < 1000 or NOW_US % 16 < #entries / 2 then call('ZREMRANGEBYRANK', index, 0, -(most + 1)) end
end

-- Reads fields of a record. A key of another type has none, so that it does not block other jobs.
local function read(id, ...)
  local r = try('HMGET', keys.job .. id, ...)
  if r.err then return {} end
  return r
end

-- Sorts {id, token} for release. The job that was claimed last is released first. So the job that was claimed first is
-- at the head again.
local function latest_first(claims)
  table.sort(claims, function(a, b) return a.token > b.token end)
  return claims
end
