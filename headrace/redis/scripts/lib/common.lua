-- What most scripts use, put after lib/keys.lua; jobs/claim.lua and jobs/settle.lua get it by `seldom()` alone.
local function list_of(queue, s)
  if s == 1 then return queue end
  return queue .. '\6\22' .. STEPS[s]
end

-- A removal of nothing: at maxmemory Redis refuses a script whose first write could grow, and lets
-- one pass that began by removing.
local function pass_at_maxmemory(zset) call('ZREM', zset, '') end

-- Reads each of a queue's own keys as what it should be, so that a wrong type errs before any write.
local function check_types(lists)
  if lists then for s = 1, 4 do call('LLEN', KEYS[s]) end end
  for k = 5, 11 do call((k == 5 or k == 8 or k == 10) and 'ZCARD' or 'HLEN', KEYS[k]) end
end

-- One command on many members, in calls that Lua can take. An even CHUNK keeps pairs together.
local function in_chunks(command, key, args)
  for i = 1, #args, CHUNK do
    call(command, key, unpack(args, i, math.min(i + CHUNK - 1, #args)))
  end
end

-- Adds {created, id, ...} to a model's index and keeps its newest. It is only a view: where the key is another's
-- the jobs are what they are without it. `most` may be exceeded by some jobs: single submits trim every 16th time.
local function index_jobs(model, entries, most)
  if most <= 0 or #entries == 0 then return end
  local index = INDEX .. model
  for i = 1, #entries, CHUNK do
    local added = try('ZADD', index, unpack(entries, i, math.min(i + CHUNK - 1, #entries)))
    if type(added) == 'table' then return end
  end
  call('EXPIRE', index, INDEX_TTL_S)
  if most < 1000 or NOW_US % 16 < #entries / 2 then call('ZREMRANGEBYRANK', index, 0, -(most + 1)) end
end

-- Fields of a record; none where the key is no record at all, so that one odd key hinders no neighbour.
local function read(id, ...)
  local r = try('HMGET', JOB .. id, ...)
  if r.err then return {} end
  return r
end

-- Sorts {id, token} for give_back: the one that was claimed last goes first, so that the one that was claimed
-- first stands at the head again.
local function latest_first(claims)
  table.sort(claims, function(a, b) return a.token > b.token end)
  return claims
end
