-- Keeps the account of the background workers: who lives, and what is to be done again. KEYS: none.
-- ARGV: 1 the owner that says that it lives ('' = nobody does), 2 what it says of itself, 3 for how many seconds that is to be
--       believed, then owners whose messages go back, as they are known to be gone, or begin anew.
-- What an owner holds that has said nothing for that long goes back as well. Returns how many messages went back.
local QUEUE, OWNERS, PREFIX = 'headrace:errands', 'hr:errands:owners', 'hr:errands:'
local living, back = ARGV[1], 0

-- To the end at which messages are taken, so that what has waited longest is done next.
local function give_back(owner, raws)
  in_chunks('RPUSH', QUEUE, raws)
  redis.call('UNLINK', PREFIX .. 'taken:' .. owner, PREFIX .. 'held:' .. owner)
  redis.call('SREM', OWNERS, owner)
  back = back + #raws
end

local function messages_of(owner)
  local raws, held = redis.call('LRANGE', PREFIX .. 'taken:' .. owner, 0, -1), redis.call('HVALS', PREFIX .. 'held:' .. owner)
  for _, raw in ipairs(held) do raws[#raws + 1] = raw end
  return raws
end

redis.call('LLEN', QUEUE)
local gone = {}
for i = 4, #ARGV do gone[ARGV[i]] = true end
for _, owner in ipairs(redis.call('SMEMBERS', OWNERS)) do
  if owner ~= living and redis.call('EXISTS', PREFIX .. 'alive:' .. owner) == 0 then gone[owner] = true end
end
for owner in pairs(gone) do gone[owner] = messages_of(owner) end
for owner, raws in pairs(gone) do
  give_back(owner, raws)
  if owner ~= living then redis.call('UNLINK', PREFIX .. 'alive:' .. owner) end
end
if living ~= '' then
  redis.call('SADD', OWNERS, living)
  redis.call('SET', PREFIX .. 'alive:' .. living, ARGV[2], 'EX', ARGV[3])
end
return back
