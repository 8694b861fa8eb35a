-- Lease replicas of the models with `total_replicas`. Each worker calls this once a second for all of them, and at once
-- when a total has changed.
-- KEYS: none. ARGV: 1 owner, 2 duration of a lease in us, 3 until when leases that have expired may be removed, 4 for how
--       many us after its last call others wait for a worker, 5 how many replicas the worker runs without a lease, then per
--       model: name@version, its total (-1: the worker leaves it), how many the worker was granted by its own knowledge,
--       how many processes it still runs, how many are ready, how many it can load (-1: it has not failed to), and 1 if
--       it may take replicas although this is its first call.
-- Returns per model: how many replicas the worker may run, and how many are ready elsewhere.
-- The entry of a worker: granted, taken (granted or still running), ready, its replicas of all models, end of the lease,
-- time of the call (0: it can load no more, so that no replica waits for it).
local owner, lease_us, reap_until, fresh_us = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local load, loads, models = tonumber(ARGV[5]), {}, {}

local ENTRY = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'
for i = 6, #ARGV, 7 do
  local model = {key = keys.replica_leases .. ARGV[i], total = tonumber(ARGV[i + 1]), granted = tonumber(ARGV[i + 2]),
    running = tonumber(ARGV[i + 3]), ready = tonumber(ARGV[i + 4]), able = tonumber(ARGV[i + 5]), takes = ARGV[i + 6] == '1',
    others = 0, taken = 0, elsewhere = 0, most = 0, fresh = {}, gone = {}}
  local entries = call('HGETALL', model.key)
  for e = 1, #entries, 2 do
    local name, granted, taken, ready, all, till, seen = entries[e], string.match(entries[e + 1], ENTRY)
    if name == owner then
      if granted then model.known, model.granted = true, tonumber(granted) end
    elseif not granted or (tonumber(till) < NOW_US and NOW_US <= reap_until) then
      model.gone[#model.gone + 1] = name
    else
      granted = tonumber(granted)
      model.others, model.taken = model.others + granted, model.taken + taken
      model.elsewhere, model.most = model.elsewhere + ready, math.max(model.most, granted)
      if NOW_US - seen < fresh_us then
        model.fresh[#model.fresh + 1] = {name = name, granted = granted}
        loads[name] = tonumber(all)
      end
    end
  end
  if model.total > 0 then load = load + model.granted end
  models[#models + 1] = model
end

local function is_full(model) return model.able >= 0 and model.granted >= model.able end

-- What the worker cannot load is for others, if any takes part that can load more.
local function give_back(model)
  if is_full(model) and #model.fresh > 0 then
    model.granted, load = model.able, load - (model.granted - model.able)
  end
end

-- Too many are granted, as the total is smaller now: those that have most give up first.
local function give_up(model)
  local excess = model.granted + model.others - model.total
  while excess > 0 and model.granted > 0 and model.granted >= model.most do
    model.granted, load, excess = model.granted - 1, load - 1, excess - 1
  end
  return excess
end

-- One replica goes to a worker that has two less, or to one with fewer replicas in all before any is loaded here.
local function even_out(model)
  for _, other in ipairs(model.fresh) do
    local less = model.granted - other.granted
    if less >= 2 or (less == 1 and model.ready == 0 and load - loads[other.name] >= 2) then
      model.granted, load, loads[other.name] = model.granted - 1, load - 1, loads[other.name] + 1
      return
    end
  end
end

-- The free memory of a worker's GPU in bytes, by its report; 0 without one.
local known_free = {}
local function free_memory(name)
  if not known_free[name] then
    local ok, figures = pcall(cjson.decode, call('HGET', keys.worker .. name, ':figures') or '')
    local free = math.huge
    for _, device in ipairs(ok and type(figures) == 'table' and figures.devices or {}) do
      free = math.min(free, (tonumber(device.memory_bytes) or 0) - (tonumber(device.memory_used_bytes) or 0))
    end
    known_free[name] = free == math.huge and 0 or free
  end
  return known_free[name]
end

-- Each free replica is for the worker with fewest: of this model, then in all, then with clearly more free memory on its
-- GPU. The others take theirs when they call.
local function take(model)
  local free = model.total - model.taken - math.max(model.granted, model.running)
  while free > 0 do
    local best, fewest, least = nil, model.granted, load
    if is_full(model) and #model.fresh > 0 then fewest = math.huge end
    for _, other in ipairs(model.fresh) do
      local all = loads[other.name]
      local equal = other.granted == fewest and all == least
      if other.granted < fewest or (other.granted == fewest and all < least)
        or (equal and free_memory(other.name) > 1.1 * free_memory(best and best.name or owner)) then
        best, fewest, least = other, other.granted, all
      end
    end
    if best then
      best.granted, loads[best.name] = best.granted + 1, loads[best.name] + 1
    else
      model.granted, load = model.granted + 1, load + 1
    end
    free = free - 1
  end
end

-- The workers that have reported lately may take part too, and have not called yet.
local live
local function expect_others(model)
  live = live or call('ZRANGEBYSCORE', keys.WORKERS, (NOW_US - fresh_us) / 1e6, '+inf')
  local known = {[owner] = true}
  for _, other in ipairs(model.fresh) do known[other.name] = true end
  for _, name in ipairs(live) do
    if not known[name] then
      model.fresh[#model.fresh + 1] = {name = name, granted = 0}
      loads[name] = loads[name] or 0
    end
  end
end

begin_with_removal(keys.WORKERS)
for _, model in ipairs(models) do
  for _, name in ipairs(model.gone) do call('HDEL', model.key, name) end
  if model.total <= 0 then
    model.granted = 0
  else
    give_back(model)
    if give_up(model) == 0 then even_out(model) end
  end
end
local answer = {}
for _, model in ipairs(models) do
  -- In its first call a worker leaves the other workers their share. One that starts takes nothing then, as those that
  -- start with it are not known yet.
  if model.total > 0 and not model.known and model.takes then expect_others(model) end
  if model.total > 0 and (model.known or model.takes) then take(model) end
  answer[#answer + 1], answer[#answer + 2] = model.granted, model.elsewhere
end
for _, model in ipairs(models) do
  if model.total < 0 then
    call('HDEL', model.key, owner)
  else
    local taken = math.max(model.granted, model.running)
    local entry = {model.granted, taken, model.ready, load, whole(NOW_US + lease_us), is_full(model) and 0 or NOW}
    call('HSET', model.key, owner, table.concat(entry, ' '))
    call('EXPIRE', model.key, keys.REPLICA_LEASES_TTL_S)
  end
end
return answer
