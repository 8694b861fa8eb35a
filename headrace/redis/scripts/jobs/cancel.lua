-- @include finish, remove_queued
-- Cancel jobs, whatever their state, and say truly what that did. KEYS: none. ARGV: 1 queue prefix, 2 for how many
-- seconds to remember ids that have no record (0: not at all), so that a message of theirs is not run; then ids, each
-- with a blank and an API key behind it where the job is unknown unless it is that key's (-: nobody's).
-- Behind the seconds, with blanks, may stand id and token of a job: for its sake they are cancelled, and nothing is done
-- where that is another's by now or has ended.
-- Returns per id: unknown, removed (it will not run), asked (a worker holds it, and is told), or ended; or false.
local REMEMBERED_MAX = 50000
local told, unknown = {}, {}

local function cancel(id, key)
  local state, model, step, ttl, waiter, ticket, owner, token, telling, of =
    unpack(read(id, 's', 'm', 'p', 'l', 'w', 'n', 'o', 't', 'fw', 'ky'))
  if key and key ~= (of or '-') then return 'unknown' end
  if not state then
    unknown[#unknown + 1] = id
    return 'unknown'
  end
  -- What follows it is being told of its end.
  if state == 'r' and telling and telling == token then return 'ended' end
  if state == 'r' then
    redis.call('HDEL', JOB .. id, 'cr')
    redis.call('HSET', JOB .. id, 'cr', '1')
    if model and owner and token then
      local t = told[owner] or {}
      told[owner] = t
      t[#t + 1], t[#t + 2], t[#t + 3] = model, id, token
    end
    return 'asked'
  end
  if not waits(state) then return 'ended' end
  local queue = ARGV[1] .. model
  finish_cancelled(id, ttl, waiter, queue, withdraw(queue, id, state, step, ticket))
  return 'removed'
end

local remember_s, sake, fence = string.match(ARGV[2], '^(%S+) ?(%S*) ?(%S*)$')
if sake ~= '' then
  local token, state = unpack(read(sake, 't', 's'))
  if token ~= fence or state ~= 'r' then return false end
end
redis.call('ZCARD', REVOKED_IDS)
local asked = {}
for i = 3, #ARGV do
  local id, key = string.match(ARGV[i], '^(%S+) (%S+)$')
  asked[i - 2] = {id or ARGV[i], key}
  local state, model = unpack(read(asked[i - 2][1], 's', 'm'))
  if waits(state) then check_waiting(ARGV[1] .. model) end
end
local answer = {}
for n, a in ipairs(asked) do answer[n] = cancel(a[1], a[2]) end
for owner, jobs in pairs(told) do redis.call('PUBLISH', CANCELLED .. owner, cmsgpack.pack(jobs)) end
if remember_s ~= '0' and #unknown > 0 then
  pass_at_maxmemory(REVOKED_IDS)
  for _, id in ipairs(unknown) do redis.call('ZADD', REVOKED_IDS, whole(NOW_US + tonumber(remember_s) * 1e6), id) end
  redis.call('EXPIRE', REVOKED_IDS, remember_s)
  redis.call('ZREMRANGEBYSCORE', REVOKED_IDS, '-inf', NOW)
  redis.call('ZREMRANGEBYRANK', REVOKED_IDS, 0, -(REMEMBERED_MAX + 1))
end
compact()
return answer
